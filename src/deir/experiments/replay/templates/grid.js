// The episode from outside and from within: MiniGrid's cells on a canvas, or pictures.

const UNSEEN = 0, WALL = 2, FLOOR = 3, DOOR = 4, KEY = 5, BALL = 6, BOX = 7, GOAL = 8, LAVA = 9;
const AHEAD = [[1, 0], [0, 1], [-1, 0], [0, -1]];

function drawThing(c, kind, colour, state, x, y, s) {
  const p = colours(), hue = p.things[colour] || p.quiet;
  c.save();
  c.translate(x, y);
  c.scale(s, s);
  c.lineWidth = 0.08;
  c.strokeStyle = c.fillStyle = hue;
  c.lineJoin = "round";
  if (kind === UNSEEN) { c.fillStyle = p.unseen; c.fillRect(0, 0, 1.01, 1.01); }
  else if (kind === WALL) { c.fillStyle = p.wall; c.fillRect(0, 0, 1.01, 1.01); }
  else if (kind === FLOOR) { c.globalAlpha = 0.3; c.fillRect(0.03, 0.03, 0.94, 0.94); }
  else if (kind === GOAL) { c.globalAlpha = 0.85; c.beginPath(); c.roundRect(0.1, 0.1, 0.8, 0.8, 0.14); c.fill(); }
  else if (kind === LAVA) {
    c.fillStyle = "#e8590c"; c.fillRect(0, 0, 1.01, 1.01);
    c.strokeStyle = "#ffd8a8"; c.lineWidth = 0.06;
    for (const row of [0.3, 0.55, 0.8]) {
      c.beginPath(); c.moveTo(0.1, row); c.quadraticCurveTo(0.3, row - 0.16, 0.5, row); c.quadraticCurveTo(0.7, row + 0.16, 0.9, row); c.stroke();
    }
  }
  else if (kind === DOOR && state === 0) { c.fillRect(0.82, 0.02, 0.14, 0.96); c.globalAlpha = 0.18; c.fillRect(0, 0, 1, 1); }
  else if (kind === DOOR) {
    c.globalAlpha = state === 2 ? 0.5 : 0.28; c.fillRect(0.04, 0.04, 0.92, 0.92); c.globalAlpha = 1;
    c.strokeRect(0.08, 0.08, 0.84, 0.84);
    c.beginPath();
    if (state === 2) c.roundRect(0.6, 0.42, 0.14, 0.24, 0.05); else c.arc(0.7, 0.5, 0.08, 0, 7);
    c.fill();
  }
  else if (kind === KEY) {
    c.lineWidth = 0.11; c.beginPath(); c.arc(0.5, 0.3, 0.15, 0, 7); c.stroke();
    c.beginPath(); c.moveTo(0.5, 0.45); c.lineTo(0.5, 0.86); c.moveTo(0.5, 0.8); c.lineTo(0.68, 0.8); c.moveTo(0.5, 0.64); c.lineTo(0.64, 0.64); c.stroke();
  }
  else if (kind === BALL) { c.beginPath(); c.arc(0.5, 0.5, 0.3, 0, 7); c.fill(); }
  else if (kind === BOX) { c.lineWidth = 0.1; c.strokeRect(0.18, 0.2, 0.64, 0.62); c.beginPath(); c.moveTo(0.18, 0.5); c.lineTo(0.82, 0.5); c.stroke(); }
  c.restore();
}

function drawAgent(c, x, y, s, direction, colour, hollow = false) {
  c.save();
  c.translate(x + s / 2, y + s / 2);
  c.rotate(direction * Math.PI / 2);
  c.scale(s, s);
  c.beginPath();
  c.moveTo(0.34, 0); c.lineTo(-0.28, 0.29); c.lineTo(-0.16, 0); c.lineTo(-0.28, -0.29); c.closePath();
  c.lineJoin = "round";
  c.lineWidth = 0.08;
  c.strokeStyle = c.fillStyle = colour;
  if (hollow) c.stroke(); else { c.fill(); c.stroke(); }
  c.restore();
}

// The codes [object, colour, state] of a view at column and row, and what noise added to them.
function codesAt(view, id, column, row) {
  const at = ((id * view.size + column) * view.size + row) * 3, codes = [], noise = [];
  for (let k = 0; k < 3; k++) {
    const value = view.noisy ? view.codes[at + k] / 16 - 2 : view.codes[at + k];
    const nearest = Math.min([10, 5, 2][k], Math.max(0, Math.round(value)));
    codes.push(nearest);
    noise.push(value - nearest);
  }
  return [codes, noise];
}

// What the agent saw at step t: its view with itself at the bottom, a picture, or numbers.
function drawView(canvas, player, episode, t) {
  const { context: c, width, height } = prepared(canvas), view = episode.view, id = view.ids[t], p = colours();
  if (view.pictures) return drawPicture(c, episode.pictures[id], width, height, canvas);
  if (view.vectors) return drawVector(c, view.vectors, id, width, height);
  const s = Math.min(width, height) / view.size, left = (width - s * view.size) / 2;
  c.fillStyle = p.floor;
  c.fillRect(left, 0, s * view.size, s * view.size);
  for (let column = 0; column < view.size; column++) for (let row = 0; row < view.size; row++) {
    const [[kind, colour, state], noise] = codesAt(view, id, column, row), x = left + column * s, y = row * s;
    drawThing(c, kind, colour, state, x, y, s);
    if (view.noisy) noise.forEach((added, k) => {
      c.fillStyle = tint(["#e03131", "#2f9e44", "#1c7ed6"][k], Math.min(0.75, Math.abs(added) * 1.6));
      c.fillRect(x + (k * s) / 3, y, s / 3 + 0.5, s);
    });
  }
  c.strokeStyle = p.line;
  c.lineWidth = 1;
  c.beginPath();
  for (let k = 1; k < view.size; k++) {
    c.moveTo(left + k * s, 0); c.lineTo(left + k * s, s * view.size);
    c.moveTo(left, k * s); c.lineTo(left + s * view.size, k * s);
  }
  c.stroke();
  drawAgent(c, left + Math.floor(view.size / 2) * s, (view.size - 1) * s, s, 3, p.agent);
}

const pictures = new Map();
function drawPicture(c, source, width, height, canvas) {
  let image = pictures.get(source);
  if (!image) {
    image = new Image();
    image.src = source;
    pictures.set(source, image);
  }
  canvas.wanted = source;
  const draw = () => {
    if (canvas.wanted !== source) return;
    const scale = Math.min(width / image.naturalWidth, height / image.naturalHeight);
    const wide = image.naturalWidth * scale, high = image.naturalHeight * scale;
    c.imageSmoothingEnabled = scale < 2;
    c.drawImage(image, (width - wide) / 2, (height - high) / 2, wide, high);
  };
  if (image.complete && image.naturalWidth) draw(); else image.addEventListener("load", draw, { once: true });
}

function drawVector(c, vectors, id, width, height) {
  const p = colours(), now = vectors[id], step = height / now.length;
  now.forEach((value, k) => {
    const all = vectors.map(row => row[k]), low = Math.min(0, ...all), high = Math.max(0, ...all), span = high - low || 1;
    const zero = (-low / span) * width, x = ((value - low) / span) * width;
    c.fillStyle = p.line; c.fillRect(zero - 0.5, k * step, 1, step);
    c.fillStyle = p.value; c.fillRect(Math.min(zero, x), k * step + 1, Math.max(1, Math.abs(x - zero)), Math.max(1, step - 2));
  });
}

function cellsAt(scene, t) {
  const cells = scene.cells.slice();
  for (const [when, where, code] of scene.changes) if (when <= t) cells[where] = code;
  return cells;
}

function drawScene(canvas, player, episode, t) {
  const scene = episode.scene, { context: c, width, height } = prepared(canvas);
  if (scene.frames) return drawPicture(c, episode.pictures[scene.frames[t]], width, height, canvas);
  const p = colours(), s = Math.min(width / scene.width, height / scene.height);
  const left = (width - s * scene.width) / 2, top = (height - s * scene.height) / 2;
  c.translate(left, top);
  drawFloor(c, scene, t, s);
  drawSeen(c, episode, t, s);
  drawTrail(c, player, episode, t, s);
  const past = earlier(episode, t);
  if (past >= 0) {
    const [x, y] = [scene.x[past], scene.y[past]];
    c.fillStyle = tint(p.past, 0.22); c.fillRect(x * s, y * s, s, s);
    drawAgent(c, x * s, y * s, s, scene.direction[past], p.past, true);
  }
  drawAgent(c, scene.x[t] * s, scene.y[t] * s, s, scene.direction[t], p.agent);
  const held = scene.carrying[t];
  if ((held & 15) > 1) drawThing(c, held & 15, (held >> 4) & 7, (held >> 7) & 3, (scene.x[t] + 0.5) * s, (scene.y[t] + 0.45) * s, s * 0.55);
}

function drawFloor(c, scene, t, s) {
  const p = colours(), cells = cellsAt(scene, t);
  c.fillStyle = p.floor;
  c.fillRect(0, 0, scene.width * s, scene.height * s);
  c.strokeStyle = p.line;
  c.lineWidth = 1;
  c.beginPath();
  for (let x = 1; x < scene.width; x++) { c.moveTo(x * s, 0); c.lineTo(x * s, scene.height * s); }
  for (let y = 1; y < scene.height; y++) { c.moveTo(0, y * s); c.lineTo(scene.width * s, y * s); }
  c.stroke();
  cells.forEach((code, i) => drawThing(c, code & 15, (code >> 4) & 7, (code >> 7) & 3, (i % scene.width) * s, Math.floor(i / scene.width) * s, s));
}

// The cells that the agent sees, by its own view.
function drawSeen(c, episode, t, s) {
  const { scene, view } = episode, [dx, dy] = AHEAD[scene.direction[t]];
  if (!view.codes) return;
  c.fillStyle = colours().glow;
  for (let column = 0; column < view.size; column++) for (let row = 0; row < view.size; row++) {
    if (codesAt(view, view.ids[t], column, row)[0][0] === UNSEEN) continue;
    const forward = view.size - 1 - row, sideways = column - Math.floor(view.size / 2);
    const x = scene.x[t] + dx * forward - dy * sideways, y = scene.y[t] + dy * forward + dx * sideways;
    if (x >= 0 && y >= 0 && x < scene.width && y < scene.height) c.fillRect(x * s, y * s, s, s);
  }
}

// Where the agent has been; the brighter a dot, the more the step there earned for being novel.
function drawTrail(c, player, episode, t, s) {
  const { scene, intrinsic } = episode, p = colours(), most = Math.max(rangeOf(intrinsic)[1], 1e-12);
  c.strokeStyle = tint(p.novel, 0.45);
  c.lineWidth = Math.max(1, s / 18);
  c.lineJoin = "round";
  c.beginPath();
  for (let i = 0; i <= t; i++) c.lineTo((scene.x[i] + 0.5) * s, (scene.y[i] + 0.5) * s);
  c.stroke();
  for (let i = 1; i <= t; i++) {
    const share = Math.min(1, Math.sqrt(Math.max(0, intrinsic[i - 1]) / most));
    c.fillStyle = tint(p.novel, 0.25 + 0.75 * share);
    c.beginPath();
    c.arc((scene.x[i] + 0.5) * s, (scene.y[i] + 0.5) * s, s * (0.05 + 0.11 * share), 0, 7);
    c.fill();
  }
}

// The step of the earlier observation that decided, -1 without one.
function earlier(episode, t) {
  const found = t > 0 && episode.why.nearest ? episode.why.nearest[t - 1] : null;
  return found && found.length ? found[0] : -1;
}

// Ends of a scale that one outlier does not own: the 5th and the 95th percentile, where there are enough values.
function rangeOf(values) {
  const sorted = values.filter(value => value !== null).sort((a, b) => a - b), last = sorted.length - 1;
  if (last < 0) return [0, 1];
  return last < 4 ? [sorted[0], sorted[last]] : [sorted[Math.ceil(last * 0.05)], sorted[Math.floor(last * 0.95)]];
}
