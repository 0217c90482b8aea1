"use strict";
// What the page is about: the data, and where in it the reader stands.

const bytesOf = text => Uint8Array.from(atob(text), letter => letter.charCodeAt(0));

async function readData() {
  const zipped = new Blob([bytesOf(document.getElementById("data").textContent)]);
  const data = JSON.parse(await new Response(zipped.stream().pipeThrough(new DecompressionStream("gzip"))).text());
  for (const player of data.players) player.episodes.forEach(unpack);
  return data;
}

function unpack(episode) {
  const { view, why } = episode;
  if (view.codes) view.codes = bytesOf(view.codes);
  if (!why.rows) return;
  let offset = 0;
  why.offsets = why.end.map((end, t) => (offset += end - why.begin[t]) - (end - why.begin[t]));
  for (const kind of why.rows) kind.values = lengthened(bytesOf(kind.values));
}

// 16 bits that are a float's exponent and the first eight bits after it.
function lengthened(bytes) {
  const short = new Uint16Array(bytes.buffer), bits = new Uint32Array(short.length);
  for (let i = 0; i < short.length; i++) bits[i] = short[i] << 15;
  return new Float32Array(bits.buffer);
}

// Distances of one kind from what was seen at step c to earlier steps: [begin, values], nothing at the first step.
function rowOf(why, kind, c) {
  if (!why.rows || c < 1 || c > why.begin.length) return [0, []];
  const t = c - 1, at = why.offsets[t];
  return [why.begin[t], why.rows[kind].values.subarray(at, at + why.end[t] - why.begin[t])];
}

const shown = { episode: 0, t: 0, playing: false, speed: 4, scope: "episode", left: null };

function figure(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(Math.max(0, digits - 1)).replace("e", " e");
  return Number.isInteger(value) ? value.toLocaleString("en") : Number(value.toPrecision(digits)).toString();
}

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null) made.setAttribute(key, value);
  }
  made.append(...children.filter(child => child !== null));
  return made;
}

// A canvas as sharp as the screen, of the size that the style gives it.
function prepared(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas, ratio = window.devicePixelRatio || 1;
  const wide = Math.round(width * ratio), high = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

let palette = null;
function colours() {
  if (palette) return palette;
  const style = getComputedStyle(document.documentElement);
  const names = ["ground", "panel", "ink", "quiet", "line", "novel", "past", "value", "reward", "floor", "wall", "unseen", "agent", "glow"];
  palette = Object.fromEntries(names.map(name => [name, style.getPropertyValue("--" + name).trim()]));
  palette.things = ["red", "green", "blue", "purple", "yellow", "grey"].map(name => style.getPropertyValue("--thing-" + name).trim());
  palette.acts = [1, 2, 3, 4, 5, 6, 7, 8].map(i => style.getPropertyValue("--act-" + i).trim());
  return palette;
}

// A colour of the scale from nothing (0) to `full` (1).
function tint(full, share) {
  return `color-mix(in srgb, ${full} ${Math.round(100 * Math.min(1, Math.max(0, share)))}%, transparent)`;
}
