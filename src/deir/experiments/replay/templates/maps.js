// Where the agent was, what it found new there and what it expected: the episode, the layout, all layouts.

const MEASURES = [["visits", "visits", "value"], ["intrinsic", "mean intrinsic reward", "novel"], ["value", "mean value", "reward"]];
const SCOPES = [["episode", "this episode"], ["layout", "this layout"], ["relative", "all layouts"]];

class Maps {
  constructor(player, root) {
    this.player = player;
    this.tell = element("p", { class: "say" });
    this.panels = MEASURES.filter(([key]) => key !== "intrinsic" || player.method !== "none").map(([key, title, hue]) => {
      const canvas = element("canvas", { class: "map", role: "img", "aria-label": `map of ${title}` }), told = element("output", { class: "told" });
      const panel = { key, hue, canvas, told, hover: null };
      canvas.addEventListener("pointermove", event => { panel.hover = [event.offsetX, event.offsetY]; this.draw(); });
      canvas.addEventListener("pointerleave", () => { panel.hover = null; this.draw(); });
      panel.box = element("figure", {}, element("figcaption", { class: "caption" }, element("span", {}, title), told), canvas);
      return panel;
    });
    const scopes = SCOPES.filter(([key]) => key === "episode" || player.maps[key]);
    this.buttons = scopes.map(([key, title]) => element("button", { type: "button", "data-scope": key, onclick: () => { shown.scope = key; drawAll(); } }, title));
    root.append(element("div", { class: "maps-head" }, element("h3", {}, "Maps"), element("div", { class: "segment" }, ...this.buttons)), this.tell, element("div", { class: "panels" }, ...this.panels.map(panel => panel.box)));
  }

  scope() { return shown.scope === "episode" || this.player.maps[shown.scope] ? shown.scope : "episode"; }

  // Cells with their figures, and the corner and size of what is drawn.
  content() {
    const scope = this.scope(), episode = this.player.episodes[shown.episode], scene = episode.scene;
    if (scope === "relative") {
      const map = this.player.maps.relative, left = Math.min(...map.x), top = Math.min(...map.y);
      return { map, left, top, width: Math.max(...map.x) - left + 1, height: Math.max(...map.y) - top + 1, scene: null, start: [0, 0] };
    }
    const map = scope === "layout" ? this.player.maps.layout[shown.episode] : sumOf(episode, Math.min(shown.t, episode.steps));
    return { map, left: 0, top: 0, width: scene.width, height: scene.height, scene, start: [scene.x[0], scene.y[0]] };
  }

  draw() {
    const content = this.content(), { map } = content, scope = this.scope();
    for (const button of this.buttons) button.setAttribute("aria-pressed", button.dataset.scope === scope);
    const episodes = `${map.episodes} episode${map.episodes === 1 ? "" : "s"}`;
    this.tell.textContent = scope === "episode" ? `Up to step ${Math.min(shown.t, this.player.episodes[shown.episode].steps)} of this episode.`
      : scope === "layout" ? `${episodes} on this layout, actions drawn anew.` : `${episodes}, each on its own layout, laid over each other by the cell where they begin (marked).`;
    for (const panel of this.panels) this.drawPanel(panel, content);
  }

  drawPanel(panel, { map, left, top, width, height, scene, start }) {
    panel.canvas.style.aspectRatio = `${width} / ${height}`;
    const { context: c, width: wide, height: high } = prepared(panel.canvas), p = colours(), s = Math.min(wide / width, high / height);
    const values = map[panel.key], known = values.filter(value => value !== null), signed = panel.key === "value";
    const [low, most] = rangeOf(known), least = signed ? low : 0;
    const share = value => (most > least ? Math.min(1, Math.max(0, (value - least) / (most - least))) : 1);
    c.fillStyle = p.floor; c.fillRect(0, 0, width * s, height * s);
    map.x.forEach((x, i) => {
      if (values[i] === null) return;
      c.fillStyle = tint(p[panel.hue], 0.08 + 0.92 * (panel.key === "visits" ? Math.sqrt(share(values[i])) : share(values[i])));
      c.fillRect((x - left) * s, (map.y[i] - top) * s, s, s);
    });
    if (scene) cellsAt(scene, 0).forEach((code, i) => drawThing(c, code & 15, (code >> 4) & 7, (code >> 7) & 3, (i % width) * s, Math.floor(i / width) * s, s));
    c.strokeStyle = p.ink; c.lineWidth = 1.5;
    c.strokeRect((start[0] - left) * s + 1.5, (start[1] - top) * s + 1.5, s - 3, s - 3);
    const highest = Math.max(...known);
    panel.told.textContent = !known.length ? "nothing yet" : signed ? `${figure(Math.min(...known), 2)} up to ${figure(highest, 2)}` : `up to ${figure(highest)}`;
    if (!panel.hover) return;
    const x = Math.floor(panel.hover[0] / s) + left, y = Math.floor(panel.hover[1] / s) + top;
    const i = map.x.findIndex((other, k) => other === x && map.y[k] === y);
    panel.told.textContent = i < 0 || values[i] === null ? "not there" : `here ${figure(values[i])}`;
  }
}

// The map of one episode up to step t.
function sumOf(episode, t) {
  const cells = new Map(), { scene } = episode;
  const entry = i => {
    const key = scene.y[i] * scene.width + scene.x[i];
    if (!cells.has(key)) cells.set(key, { visits: 0, value: 0, arrivals: 0, intrinsic: 0 });
    return cells.get(key);
  };
  for (let i = 0; i <= t; i++) {
    const cell = entry(i);
    if (i < episode.steps) { cell.visits++; cell.value += episode.value[i]; }
    if (i) { cell.arrivals++; cell.intrinsic += episode.intrinsic[i - 1]; }
  }
  const rows = [...cells];
  return {
    episodes: 1, x: rows.map(([key]) => key % scene.width), y: rows.map(([key]) => Math.floor(key / scene.width)),
    visits: rows.map(([, cell]) => cell.visits || null), value: rows.map(([, cell]) => (cell.visits ? cell.value / cell.visits : null)),
    intrinsic: rows.map(([, cell]) => (cell.arrivals ? cell.intrinsic / cell.arrivals : null)),
  };
}
