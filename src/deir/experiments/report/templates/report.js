"use strict";
(async () => {
  const packed = Uint8Array.from(atob(document.getElementById("library").textContent), (letter) => letter.charCodeAt(0));
  const library = document.createElement("script");
  library.textContent = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  document.head.append(library);
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 560px)");
  const get = (id) => document.getElementById(id);
  const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`).value;
  const hidden = new Set();
  const view = () => data.views[Number(get("view").value)];
  const shown = () => data.methods.filter((method) => !hidden.has(method.name));
  const color = (method) => (dark.matches ? method.dark : method.color);
  const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const shade = (hex, alpha) => `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},${alpha})`;
  const number = (value) => (value === null ? "–" : Math.abs(value) >= 100 ? value.toFixed(1) : value.toPrecision(3));
  const capital = (text) => text[0].toUpperCase() + text.slice(1);

  function layout(x, y, more = {}) {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink"), line = style.getPropertyValue("--line"), ground = style.getPropertyValue("--ground"), quiet = style.getPropertyValue("--quiet");
    const axis = { gridcolor: line, zeroline: false, linecolor: line, tickcolor: line, ticks: "outside", ticklen: 4, automargin: true };
    return {
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: ink },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
      margin: { l: narrow.matches ? 48 : 60, r: narrow.matches ? 14 : 24, t: 30, b: 50 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: quiet, activecolor: ink },
      hoverlabel: { bgcolor: ground, bordercolor: line, font: { color: ink, size: 12.5 } },
      xaxis: { ...axis, spikethickness: 1, spikecolor: quiet, spikedash: "dot", ...x, title: { text: x.title, standoff: 10 } },
      yaxis: { ...axis, ...y, title: { text: y.title, standoff: 8 } },
      ...more,
    };
  }

  const label = (name) => data.methods.find((method) => method.name === name).label;

  const drawing = {}; // by plot, what Plotly has not finished; it goes on after the call, and must not find the plot gone
  const empty = new Set();

  /** Without traces it says why there are none. */
  function draw(id, traces, look, why) {
    const place = get(id);
    if (!traces.length) {
      empty.add(id);
      const text = document.createElement("p");
      text.className = "empty";
      text.textContent = hidden.size === data.methods.length ? "No method is chosen." : `Nothing to show: ${why}.`;
      const clear = () => {
        if (!empty.has(id)) return;
        Plotly.purge(place);
        place.replaceChildren(text);
      };
      Promise.resolve(drawing[id]).then(clear, clear);
      return;
    }
    empty.delete(id);
    if (place.querySelector("p.empty")) place.replaceChildren();
    drawing[id] = Plotly.react(place, traces, look, {
      displaylogo: false, responsive: true, plotlyServerURL: "",
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
      toImageButtonOptions: { format: "svg", filename: id.replace("plot-", "deir-") },
    });
  }

  /** The outline of a band, one closed part for each stretch without gaps. */
  function outline(x, low, high) {
    const xs = [], ys = [];
    let start = null;
    for (let i = 0; i <= x.length; i++) {
      const known = i < x.length && x[i] !== null && low[i] !== null && high[i] !== null;
      if (known && start === null) start = i;
      if (!known && start !== null) {
        for (let j = start; j < i; j++) { xs.push(x[j]); ys.push(high[j]); }
        for (let j = i - 1; j >= start; j--) { xs.push(x[j]); ys.push(low[j]); }
        xs.push(null); ys.push(null);
        start = null;
      }
    }
    return [xs, ys];
  }

  /** A point without neighbours is no line: it gets a dot. */
  function dots(values) {
    const known = (i) => values[i] !== null && values[i] !== undefined;
    const sizes = values.map((_, i) => (known(i) && !known(i - 1) && !known(i + 1) ? 7 : 0));
    return sizes.some((size) => size) ? { mode: "lines+markers", marker: { size: sizes, line: { width: 0 } } } : { mode: "lines" };
  }

  function timeUnit(series) {
    const longest = Math.max(...Object.values(series).flatMap((one) => one.seconds).filter((s) => s !== null));
    return longest < 300 ? [1, "seconds"] : longest < 10800 ? [60, "minutes"] : [3600, "hours"];
  }

  function drawCurves() {
    const axis = chosen("axis"), statistic = chosen("statistic"), metric = get("metric").value, all = view() === data.all;
    const logX = get("log-x").checked, logY = get("log-y").checked;
    const series = (data.curves[view()] || {})[metric] || {};
    const methods = shown().filter((method) => series[method.name]);
    const [unit, unitName] = axis === "seconds" && !all && methods.length ? timeUnit(series) : [1, axis];
    const middles = methods.flatMap((method) => series[method.name][statistic]).filter((value) => value > 0);
    const floor = logY && middles.length ? Math.min(...middles) / 2 : -Infinity;
    const above = (value) => (value === null ? null : Math.max(value, floor));
    const bands = [], lines = [];
    for (const method of methods) {
      const one = series[method.name];
      const x = one[axis].map((value) => (value === null ? null : value / unit));
      const middle = one[statistic];
      const spread = (sign) => middle.map((m, i) => (m === null || one.error[i] === null ? null : m + sign * one.error[i]));
      const [low, high] = statistic === "mean" ? [spread(-1), spread(1)] : [one.low, one.high];
      const [bandX, bandY] = outline(x, low.map(above), high.map(above));
      const text = middle.map((m, i) => {
        const around = low[i] === null ? "" : statistic === "mean" ? ` ± ${number(one.error[i])}` : ` [${number(low[i])}, ${number(high[i])}]`;
        return `<b>${escaped(method.label)}</b> ${number(m)}${around}, ${one.runs[i]} of ${one.of} runs (${method.seeds})`;
      });
      const line = { color: color(method), dash: method.dash };
      const zorder = data.methods.length - data.methods.indexOf(method); // the first one on top
      bands.push({ x: bandX, y: bandY, name: method.name, mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: shade(color(method), 0.15), hoverinfo: "skip" });
      lines.push({ x, y: middle, name: method.name, ...dots(middle), zorder, opacity: 0.5, line: { ...line, width: 1 }, text, hovertemplate: "%{text}<extra></extra>" });
      const whole = middle.map((m, i) => (one.runs[i] === one.of ? m : null));
      lines.push({ x, y: whole, name: method.name, ...dots(whole), zorder, line: { ...line, width: method.width }, hoverinfo: "skip" });
    }
    const scaled = all && metric === "return_mean";
    const quantity = scaled ? "return ÷ best return" : data.metrics[metric];
    const height = logY || all || !data.heights[metric] ? {} : { range: data.heights[metric] }; // the same for all tasks
    const xTitle = all ? `share of the ${axis === "frames" ? "frames" : "time"}` : unitName;
    const range = logX || all ? {} : { rangemode: "tozero" };
    draw("plot-curves", [...bands, ...lines], layout(
      { title: xTitle, type: logX ? "log" : "linear", hoverformat: axis === "frames" && !all ? ",d" : ".3g", ...range },
      { title: quantity, type: logY ? "log" : "linear", ...height },
      { hovermode: narrow.matches ? "closest" : "x unified" }), data.why.curves[metric]);
    const band = statistic === "mean" ? "the mean over runs, and its standard error as a band" : "the interquartile mean over runs, and its 95% bootstrap interval as a band";
    get("say-curves").textContent = `${capital(quantity)}${all ? " over all tasks" : ""}: ${band}.`;
  }

  function drawProfile() {
    const found = data.profiles[view()] || {};
    const traces = [];
    for (const method of shown().reverse()) {
      const one = found[method.name];
      if (!one) continue;
      const stairs = (values) => values.flatMap((value, i) => (i ? [values[i - 1], value] : [value]));
      const x = one.score.flatMap((value, i) => (i ? [value, value] : [value]));
      const [bandX, bandY] = outline(x, stairs(one.low), stairs(one.high));
      traces.unshift({ x: bandX, y: bandY, name: method.name, mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: shade(color(method), 0.13), hoverinfo: "skip" });
      traces.push({
        x: one.score, y: one.share, name: method.name, mode: "lines", line: { color: color(method), dash: method.dash, width: method.width, shape: "hv" },
        hovertemplate: `<b>${escaped(method.label)}</b> %{y:.0%} of runs above %{x:.2f}<extra></extra>`,
      });
    }
    draw("plot-profile", traces, layout(
      { title: "final return ÷ best return", rangemode: "tozero" }, { title: "share of runs above", range: [-0.03, 1.03], tickformat: ".0%" }, { hovermode: "closest" }), data.why.profile[view()]);
  }

  /** Categories from above downwards. */
  const lanes = (names) => ({ type: "category", categoryorder: "array", categoryarray: names.map(escaped).reverse(), range: [-0.6, names.length - 0.4], title: "", ticks: "", showgrid: false });

  function drawProbability() {
    const reference = data.methods[Number(get("reference").value)].name, measure = get("measure").value;
    const rows = data.probabilities.filter((row) => row.env === view() && row.measure === measure && row.method === reference && !hidden.has(row.other));
    const names = data.methods.map((method) => method.name).filter((name) => rows.some((row) => row.other === name));
    const traces = rows.flatMap((row) => {
      const c = color(data.methods.find((method) => method.name === row.other));
      const y = escaped(label(row.other));
      const around = row.low === null ? "" : `<br>95% interval ${row.low.toFixed(2)} to ${row.high.toFixed(2)}`;
      const bar = { x: [row.low, row.high], y: [y, y], mode: "lines", line: { color: shade(c, 0.35), width: 9 }, hoverinfo: "skip" };
      const dot = { x: [row.probability], y: [y], mode: "markers", marker: { color: c, size: 12 }, cliponaxis: false, hovertemplate: `P(${escaped(label(reference))} > ${y}) = %{x:.2f}${around}<extra></extra>` };
      return [bar, dot];
    });
    const half = { type: "line", x0: 0.5, x1: 0.5, yref: "paper", y0: 0, y1: 1, layer: "below", line: { color: getComputedStyle(document.documentElement).getPropertyValue("--quiet"), width: 1, dash: "dot" } };
    draw("plot-probability", traces, layout(
      { title: `probability that ${escaped(label(reference))} is better`, range: [-0.03, 1.03] }, lanes(names.map(label)), { hovermode: "closest", shapes: [half] }), data.why.probability);
  }

  function drawReach() {
    const all = view() === data.all, key = get("threshold").value;
    const rows = data.reaches.filter((row) => row.threshold === key && (all ? data.shared.includes(row.env) : row.env === view()));
    const methods = shown().filter((method) => rows.some((row) => row.method === method.name));
    const traces = [], notes = [];
    for (const method of methods) {
      const mine = rows.filter((row) => row.method === method.name);
      const place = (row) => (row.frames === null ? Infinity : all ? row.frames / row.budget : row.frames);
      const reached = mine.filter((row) => row.frames !== null);
      const y = escaped(method.label);
      traces.push({
        x: reached.map(place), y: reached.map(() => y), mode: "markers", marker: { color: shade(color(method), 0.6), size: 11 }, cliponaxis: false,
        text: reached.map((row) => `<b>${y}</b>, ${all ? escaped(row.env) + ", " : ""}seed ${row.seed}: ${row.frames.toLocaleString("en")} frames`), hovertemplate: "%{text}<extra></extra>",
      });
      const sorted = mine.map(place).sort((a, b) => a - b);
      const median = (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
      if (Number.isFinite(median)) {
        traces.push({ x: [median], y: [y], mode: "markers", marker: { symbol: "line-ns", size: 24, line: { width: 3, color: color(method) } }, hovertemplate: `<b>${y}</b>, median<extra></extra>` });
      }
      notes.push({ xref: "paper", x: 1.01, xanchor: "left", y, text: `${reached.length} of ${mine.length}`, showarrow: false });
    }
    const most = all ? 1 : Math.max(0, ...rows.map((row) => row.budget));
    draw("plot-reach", traces, layout(
      { title: all ? "share of the frames" : "frames", range: [0, most * 1.03] }, lanes(methods.map((method) => method.label)),
      { hovermode: "closest", annotations: notes, margin: { l: narrow.matches ? 48 : 60, r: 70, t: 30, b: 50 } }), data.why.reach);
  }

  function showRows() {
    for (const row of get("summary").tBodies[0].rows) {
      row.hidden = Number(row.dataset.view) !== Number(get("view").value) || hidden.has(data.methods[Number(row.dataset.method)].name);
    }
    get("say-summary").textContent = view() === data.all ? "Returns are shares of the task’s best return." : `The best return is ${number(data.best[view()])}.`;
  }

  function sortRows(button) {
    const header = button.parentElement, body = get("summary").tBodies[0];
    const down = header.getAttribute("aria-sort") === (header.cellIndex ? "descending" : "ascending");
    const order = (header.cellIndex ? !down : down) ? -1 : 1;
    for (const other of header.parentElement.cells) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", order === 1 ? "ascending" : "descending");
    const key = (row) => row.cells[header.cellIndex].dataset.value;
    const compare = (a, b) => {
      if (key(a) === "" || key(b) === "") return (key(a) === "") - (key(b) === ""); // unknown values stay below
      return order * (header.cellIndex ? Number(key(a)) - Number(key(b)) : key(a).localeCompare(key(b)));
    };
    body.append(...[...body.rows].sort(compare));
  }

  function chooseMetrics() {
    const present = data.curves[view()] || {};
    for (const option of get("metric").options) option.disabled = !present[option.value];
    if (get("metric").selectedOptions[0].disabled) get("metric").value = "return_mean";
  }

  function drawAll() {
    chooseMetrics();
    drawCurves();
    showRows();
    drawProfile();
    drawProbability();
    drawReach();
  }

  function toggle(chip) {
    const name = data.methods[Number(chip.dataset.method)].name;
    hidden.has(name) ? hidden.delete(name) : hidden.add(name);
    chip.setAttribute("aria-pressed", String(!hidden.has(name)));
    drawAll();
  }

  const chips = document.querySelectorAll(".chip");
  chips.forEach((chip) => chip.addEventListener("click", () => toggle(chip)));
  get("everything")?.addEventListener("click", () => {
    hidden.clear();
    chips.forEach((chip) => chip.setAttribute("aria-pressed", "true"));
    drawAll();
  });
  get("view").addEventListener("change", drawAll);
  for (const id of ["metric", "log-x", "log-y"]) get(id).addEventListener("change", drawCurves);
  for (const name of ["axis", "statistic"]) document.querySelectorAll(`input[name="${name}"]`).forEach((input) => input.addEventListener("change", drawCurves));
  for (const id of ["reference", "measure"]) get(id).addEventListener("change", drawProbability);
  get("threshold").addEventListener("change", drawReach);
  document.querySelectorAll("#summary thead button").forEach((button) => button.addEventListener("click", () => sortRows(button)));
  for (const query of [dark, narrow]) query.addEventListener("change", drawAll);
  drawAll();
  document.documentElement.dataset.ready = "yes";
})();
