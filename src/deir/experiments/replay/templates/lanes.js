// What happened against time: every lane has the same time axis, so that one cursor goes through all of them.

class Lanes {
  constructor(player, root) {
    this.player = player;
    this.hover = null;
    this.lanes = [];
    this.root = root;
    const methods = player.episodes[0];
    if (player.method !== "none") this.add("intrinsic", "intrinsic reward", 84, this.drawIntrinsic, this.tellIntrinsic);
    if (methods.why.rows) this.add("strip", "distance to each earlier step", 18 * methods.why.rows.length + 2, this.drawStrip, this.tellStrip);
    this.visit = methods.why.figures.findIndex(entry => typeof entry.values[0] === "boolean");
    if (this.visit >= 0) this.add("strip", methods.why.figures[this.visit].name, 56, this.drawVisits, this.tellVisits);
    this.add("value", "value", 52, this.drawValue, this.tellValue);
    this.add("extrinsic", "extrinsic reward", 30, this.drawExtrinsic, this.tellExtrinsic);
    if (methods.probabilities) this.add("actions", "action probabilities", 64, this.drawActions, this.tellActions);
  }

  add(key, title, height, draw, tell) {
    const canvas = element("canvas", { class: "lane", style: `height:${height}px`, role: "img", "aria-label": `${title} against time` });
    const told = element("output", { class: "told" });
    const lane = element("div", { class: `lane-box ${key}` }, element("div", { class: "caption" }, element("span", {}, title), told), canvas);
    this.root.append(lane);
    const stepAt = event => {
      const box = canvas.getBoundingClientRect();
      return Math.max(0, Math.min(this.span() - 1, Math.floor(((event.clientX - box.left) / box.width) * this.span())));
    };
    canvas.addEventListener("pointerdown", event => { canvas.setPointerCapture(event.pointerId); goTo(stepAt(event)); });
    canvas.addEventListener("pointermove", event => {
      if (event.buttons) goTo(stepAt(event));
      else { this.hover = stepAt(event); this.draw(); }
    });
    canvas.addEventListener("pointerleave", () => { this.hover = null; this.draw(); });
    this.lanes.push({ key, canvas, told, draw, tell });
  }

  get episode() { return this.player.episodes[shown.episode]; }
  span() { return longest() + 1; }

  draw() {
    const at = this.hover === null ? Math.min(shown.t, this.episode.steps) : Math.min(this.hover, this.episode.steps);
    for (const lane of this.lanes) {
      const { context: c, width, height } = prepared(lane.canvas), step = width / this.span();
      lane.draw.call(this, c, width, height, step);
      this.drawCursor(c, lane, width, height, step);
      lane.told.textContent = (this.hover === null ? "" : `step ${at}: `) + lane.tell.call(this, at);
    }
  }

  drawCursor(c, lane, width, height, step) {
    const p = colours(), t = Math.min(shown.t, this.episode.steps), past = earlier(this.episode, t);
    const mark = (at, colour) => { c.fillStyle = tint(colour, 0.16); c.fillRect(at * step, 0, Math.max(step, 2), height); c.fillStyle = colour; c.fillRect((at + 0.5) * step - 0.75, 0, 1.5, height); };
    if (past >= 0) mark(past, p.past);
    mark(t, p.ink);
    if (past >= 0 && lane.key === "intrinsic") {
      const from = (past + 0.5) * step, to = (t + 0.5) * step;
      c.strokeStyle = p.past; c.lineWidth = 1.5; c.setLineDash([4, 3]);
      c.beginPath(); c.moveTo(from, 10); c.quadraticCurveTo((from + to) / 2, -6, to, 10); c.stroke(); c.setLineDash([]);
      c.fillStyle = p.past; c.beginPath(); c.arc(from, 10, 3.5, 0, 7); c.fill();
    }
    if (this.hover !== null) { c.fillStyle = tint(p.quiet, 0.5); c.fillRect((this.hover + 0.5) * step - 0.5, 0, 1, height); }
  }

  drawIntrinsic(c, width, height, step) {
    const p = colours(), values = this.episode.intrinsic, most = Math.max(...values, this.player.mean, 1e-9), room = height - 16;
    values.forEach((value, t) => {
      const high = Math.max(value > 0 ? 1.5 : 0, (Math.max(0, value) / most) * room);
      c.fillStyle = tint(p.novel, value >= this.player.mean ? 1 : 0.45);
      c.fillRect((t + 1) * step + (step > 4 ? 1 : 0), height - high, Math.max(1, step - (step > 4 ? 2 : 0)), high);
    });
    const level = height - (Math.max(0, this.player.mean) / most) * room;
    c.strokeStyle = p.quiet; c.lineWidth = 1; c.setLineDash([2, 3]);
    c.beginPath(); c.moveTo(0, level); c.lineTo(width, level); c.stroke(); c.setLineDash([]);
  }
  tellIntrinsic(at) { return at ? `${figure(this.episode.intrinsic[at - 1])}  ·  running mean ${figure(this.player.mean)}` : `running mean ${figure(this.player.mean)}`; }

  // A line for each kind of distance, a column for each earlier step; the fuller the colour, the nearer.
  drawStrip(c, width, height, step) {
    const p = colours(), why = this.episode.why, t = Math.min(shown.t, this.episode.steps), high = height / why.rows.length;
    why.rows.forEach((kind, k) => {
      const [begin, row] = rowOf(why, k, t), smallest = Math.min(...row), largest = Math.max(...row, 1e-12);
      row.forEach((value, i) => {
        const share = largest > smallest ? 1 - (value - smallest) / (largest - smallest) : 1;
        c.fillStyle = tint(k === why.rows.length - 1 ? p.past : p.value, 0.08 + 0.92 * share ** 3);
        c.fillRect((begin + i) * step, k * high + 1, Math.max(1, step - (step > 4 ? 1 : 0)), high - 3);
      });
      c.fillStyle = p.quiet; c.font = "11px system-ui, sans-serif"; c.textBaseline = "middle"; c.textAlign = "right";
      const name = kind.name === "score" ? (why.rows.length > 2 ? "ratio" : "") : kind.name;
      if (t < this.span() * 0.75) c.fillText(name, width - 4, (k + 0.5) * high);
    });
    const past = earlier(this.episode, t);
    if (past >= 0) { c.strokeStyle = p.past; c.lineWidth = 2; c.strokeRect(past * step, 1, Math.max(step, 3), height - 2); }
  }
  tellStrip(at) {
    const why = this.episode.why, t = Math.min(shown.t, this.episode.steps), past = earlier(this.episode, t);
    if (this.hover === null) return past < 0 ? "nothing to compare with yet" : `nearest is step ${past}`;
    const parts = why.rows.map((kind, k) => {
      const [begin, row] = rowOf(why, k, t), value = row[at - begin];
      return value === undefined ? null : `${kind.name === "score" ? "=" : kind.name} ${figure(value, 2)}`;
    }).filter(text => text !== null);
    return parts.length ? parts.join("  ") : "not compared";
  }

  // Steps of which the method only says yes or no.
  drawVisits(c, width, height, step) {
    const p = colours();
    this.episode.why.figures[this.visit].values.forEach((yes, t) => {
      c.fillStyle = tint(p.past, yes ? 0.85 : 0.12);
      c.fillRect((t + 1) * step, yes ? 6 : height / 2, Math.max(1, step - (step > 4 ? 1 : 0)), yes ? height - 12 : 3);
    });
  }
  tellVisits(at) { return at ? figure(this.episode.why.figures[this.visit].values[at - 1]) : ""; }

  drawValue(c, width, height, step) {
    const p = colours(), values = this.episode.value, low = Math.min(0, ...values), high = Math.max(...values, low + 1e-6);
    const y = value => height - 4 - ((value - low) / (high - low)) * (height - 8);
    c.beginPath();
    values.forEach((value, t) => c.lineTo((t + 0.5) * step, y(value)));
    c.strokeStyle = p.value; c.lineWidth = 1.75; c.lineJoin = "round"; c.stroke();
    c.lineTo((values.length - 0.5) * step, height); c.lineTo(0.5 * step, height); c.closePath();
    c.fillStyle = tint(p.value, 0.12); c.fill();
  }
  tellValue(at) { return figure(this.episode.value[at]); }

  drawExtrinsic(c, width, height, step) {
    const p = colours(), values = this.episode.extrinsic, most = Math.max(...values.map(Math.abs), 1e-9);
    c.fillStyle = p.line; c.fillRect(0, height - 1, width, 1);
    values.forEach((value, t) => {
      if (!value) return;
      c.fillStyle = value > 0 ? p.reward : p.agent;
      const high = Math.max(3, (Math.abs(value) / most) * (height - 2));
      c.fillRect((t + 1) * step, height - high, Math.max(2, step - 1), high);
    });
  }
  tellExtrinsic(at) {
    const sum = this.episode.extrinsic.slice(0, at).reduce((a, b) => a + b, 0);
    return `${figure(at ? this.episode.extrinsic[at - 1] : 0)}  ·  so far ${figure(sum)}`;
  }

  drawActions(c, width, height, step) {
    const p = colours();
    this.episode.probabilities.forEach((row, t) => {
      let top = 0;
      row.forEach((share, a) => {
        c.fillStyle = p.acts[a % p.acts.length];
        c.fillRect(t * step, top * height, Math.max(1, step) + 0.4, share * height + 0.4);
        top += share;
      });
    });
  }
  tellActions(at) {
    const action = this.episode.action[at];
    return action === undefined ? "the episode is over" : `takes ${this.player.actions[action]} (${Math.round(100 * this.episode.probabilities[at][action])}%)`;
  }
}
