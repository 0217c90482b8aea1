// The players side by side, and the controls that move them all.

let data = null;
const players = [];
const byId = id => document.getElementById(id);

function longest() { return Math.max(...data.players.map(player => player.episodes[shown.episode].steps)); }

function makePlayer(player) {
  const scene = element("canvas", { class: "scene", role: "img", "aria-label": `the episode of ${player.name}` });
  const outcome = element("p", { class: "outcome" }), why = element("div", { class: "card" }), acts = element("div", { class: "card" });
  const lanes = element("div", { class: "lanes" }), maps = element("div", { class: "maps" }), first = player.episodes[0].scene;
  const name = element("h2", {}, element("i", { style: `--c:${player.color};--d:${player.dark}` }), player.name);
  const root = element("section", { class: "player", "aria-label": player.name },
    element("header", {}, name, element("p", { class: "detail" }, player.detail), outcome),
    element("div", { class: "stage" }, element("div", { class: "scene-box" }, scene), element("div", { class: "side" }, why, acts)),
    lanes, maps);
  if (first.width) scene.style.aspectRatio = `${first.width} / ${first.height}`;
  byId("players").append(root);
  const parts = [new Why(player, why), new Acts(player, acts), new Lanes(player, lanes)];
  if (first.width) parts.push(new Maps(player, maps)); else maps.remove();
  return () => {
    const episode = player.episodes[shown.episode], t = Math.min(shown.t, episode.steps);
    drawScene(scene, player, episode, t);
    outcome.textContent = endingOf(episode);
    outcome.classList.toggle("good", episode.return > 0);
    for (const part of parts) part.draw();
  };
}

function drawAll() {
  const end = longest();
  byId("scrub").max = end;
  byId("scrub").value = shown.t;
  byId("clock").textContent = `${shown.t} / ${end}`;
  byId("play").classList.toggle("playing", shown.playing);
  byId("play").setAttribute("aria-label", shown.playing ? "pause" : "play");
  for (const button of byId("episodes").children) button.setAttribute("aria-pressed", Number(button.dataset.episode) === shown.episode);
  for (const draw of players) draw();
}

let waiting = false;
function drawSoon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; drawAll(); });
}

function goTo(t) {
  shown.t = Math.max(0, Math.min(longest(), Math.round(t)));
  remember();
  drawSoon();
}

function chooseEpisode(number) {
  shown.episode = (number + data.players[0].episodes.length) % data.players[0].episodes.length;
  goTo(0);
}

// The place in the address, so that it can be shared. A page from disk may not be allowed to change its address.
function remember() {
  try { history.replaceState(null, "", `#episode=${shown.episode + 1}&step=${shown.t}`); } catch { /* stays as it is */ }
}

function recall() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  shown.episode = Math.min(data.players[0].episodes.length, Math.max(1, Number(wanted.get("episode")) || 1)) - 1;
  shown.t = Math.min(longest(), Math.max(0, Number(wanted.get("step")) || 0));
}

let last = 0;
function play(on) {
  if (on && shown.t >= longest()) shown.t = 0;
  shown.playing = on;
  last = performance.now();
  drawSoon();
  if (on) requestAnimationFrame(tick);
}

function tick(now) {
  if (!shown.playing) return;
  const steps = Math.floor(((now - last) / 1000) * shown.speed);
  if (steps > 0) {
    last += (steps / shown.speed) * 1000;
    goTo(shown.t + steps);
    if (shown.t >= longest()) shown.playing = false;
  }
  requestAnimationFrame(tick);
}

function speedBy(change) {
  const options = [...byId("speed").options], at = Math.max(0, Math.min(options.length - 1, byId("speed").selectedIndex + change));
  byId("speed").selectedIndex = at;
  shown.speed = Number(options[at].value);
}

// The next step, before or after this one, that earned at least the running mean.
function novelStep(direction) {
  const player = data.players[0], episode = player.episodes[shown.episode];
  for (let t = shown.t + direction; t >= 1 && t <= episode.steps; t += direction) if (episode.intrinsic[t - 1] >= player.mean && episode.intrinsic[t - 1] > 0) return goTo(t);
}

function jumpEarlier() {
  if (shown.left !== null) { const back = shown.left; shown.left = null; return goTo(back); }
  const past = data.players.map(player => earlier(player.episodes[shown.episode], Math.min(shown.t, player.episodes[shown.episode].steps))).find(step => step >= 0);
  if (past === undefined) return;
  const from = shown.t;
  goTo(past);
  shown.left = from;
}

const KEYS = {
  " ": () => play(!shown.playing), k: () => play(!shown.playing),
  ArrowLeft: event => goTo(shown.t - (event.shiftKey ? 10 : 1)), ArrowRight: event => goTo(shown.t + (event.shiftKey ? 10 : 1)),
  Home: () => goTo(0), End: () => goTo(longest()), ArrowUp: () => speedBy(1), ArrowDown: () => speedBy(-1),
  n: () => novelStep(1), p: () => novelStep(-1), e: jumpEarlier,
  "[": () => chooseEpisode(shown.episode - 1), "]": () => chooseEpisode(shown.episode + 1), t: changeTheme,
};

function changeTheme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  palette = null;
  drawAll();
}

function listen() {
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
    if (event.key === " " && event.target.tagName === "BUTTON") return;
    const act = KEYS[event.key];
    if (!act) return;
    event.preventDefault();
    if (event.key !== "e") shown.left = null;
    if (event.key !== " " && event.key !== "k" && event.key.startsWith("Arrow") === false && event.key !== "t") shown.playing = false;
    act(event);
  });
  byId("play").addEventListener("click", () => play(!shown.playing));
  byId("first").addEventListener("click", () => goTo(0));
  byId("back").addEventListener("click", () => goTo(shown.t - 1));
  byId("on").addEventListener("click", () => goTo(shown.t + 1));
  byId("last").addEventListener("click", () => goTo(longest()));
  byId("scrub").addEventListener("input", event => goTo(Number(event.target.value)));
  byId("speed").addEventListener("change", event => { shown.speed = Number(event.target.value); });
  byId("theme").addEventListener("click", changeTheme);
  byId("keys").addEventListener("click", () => {
    byId("help").hidden = !byId("help").hidden;
    byId("keys").setAttribute("aria-expanded", !byId("help").hidden);
  });
  new ResizeObserver(drawSoon).observe(byId("players"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { palette = null; drawAll(); });
}

async function begin() {
  data = await readData();
  recall();
  byId("facts").textContent = data.facts;
  byId("players").classList.toggle("several", data.players.length > 1);
  data.players[0].episodes.forEach((_, i) => {
    const results = data.players.map(player => player.episodes[i]).map(episode => `${episode.return > 0 ? "✓ " : ""}${episode.steps}`).join(" · ");
    byId("episodes").append(element("button", { type: "button", class: "chip", "data-episode": i, onclick: () => chooseEpisode(i) }, element("b", {}, `layout ${i + 1}`), ` ${results} steps`));
  });
  for (const player of data.players) players.push(makePlayer(player));
  listen();
  drawAll();
  document.documentElement.dataset.ready = "yes";
}

begin();
