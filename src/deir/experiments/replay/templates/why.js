// Why a step was novel: the figures of the reward, and the earlier observation beside the present one.

const NOTHING = 1e-6;  // of the running mean: two distances that should be equal differ by their rounding

class Why {
  constructor(player, root) {
    this.player = player;
    const compares = Boolean(player.episodes[0].why.nearest);
    this.now = element("canvas", { class: "view", role: "img", "aria-label": "what the agent sees" });
    this.past = element("canvas", { class: "view", role: "img", "aria-label": "the earlier observation" });
    this.nowCaption = element("figcaption");
    this.pastCaption = element("figcaption");
    this.pastBox = element("figure", { class: "past" }, element("button", { type: "button", class: "frame", title: "go to that step (e)", onclick: jumpEarlier }, this.past), this.pastCaption);
    this.verdict = element("p", { class: "verdict" });
    this.figures = element("dl", { class: "figures" });
    this.equation = element("p", { class: "equation" });
    this.others = element("div", { class: "others" });
    root.append(
      element("h3", {}, player.method === "none" ? "The agent’s own view" : "Why was this step novel?"),
      this.verdict,
      element("div", { class: "views" }, element("figure", { class: "now" }, element("span", { class: "frame" }, this.now), this.nowCaption), compares ? this.pastBox : null),
      this.others, this.figures, this.equation,
    );
  }

  draw() {
    const { player } = this, episode = player.episodes[shown.episode], t = Math.min(shown.t, episode.steps), past = earlier(episode, t);
    drawView(this.now, player, episode, t);
    this.nowCaption.textContent = t ? `sees now, step ${t}` : "sees first";
    this.pastBox.classList.toggle("empty", past < 0);
    if (past >= 0) drawView(this.past, player, episode, past); else prepared(this.past);
    this.pastCaption.textContent = past >= 0 ? `${this.words(episode, t)}, step ${past}` : t ? this.nothing(episode) : "nothing earlier";
    this.drawOthers(episode, t);
    this.tell(episode, t);
  }

  words(episode, t) { return episode.why.rows ? "nearest earlier" : "the same, seen before"; }
  nothing(episode) { return episode.why.rows ? "nothing to compare with yet" : "not seen before in this episode"; }

  // The further neighbours, where a method looks at several.
  drawOthers(episode, t) {
    const further = t && episode.why.nearest ? episode.why.nearest[t - 1].slice(1) : [];
    this.others.replaceChildren(...further.map(step => {
      const canvas = element("canvas", { class: "small view" });
      const button = element("button", { type: "button", title: `step ${step}`, onclick: () => goTo(step) }, canvas, element("span", {}, String(step)));
      requestAnimationFrame(() => drawView(canvas, this.player, episode, step));
      return button;
    }));
  }

  tell(episode, t) {
    const { player } = this, why = episode.why, reward = t ? episode.intrinsic[t - 1] : null;
    if (player.method === "none") {
      this.verdict.textContent = "This run has no intrinsic reward.";
      return;
    }
    this.equation.textContent = why.equation;
    const rows = why.figures.map(entry => [entry.name, t ? entry.values[t - 1] : null]);
    rows.push(["intrinsic reward", reward], ["running mean", player.mean], ["paid to the policy", t ? episode.paid[t - 1] : null]);
    this.figures.replaceChildren(...rows.map(([name, value]) => element("div", { class: name === "intrinsic reward" ? "strong" : "" }, element("dt", {}, name), element("dd", {}, figure(value, 4)))));
    if (!t) this.verdict.replaceChildren("The episode begins; the first step will say what is new.");
    else if (reward <= NOTHING * Math.max(0, player.mean)) this.verdict.replaceChildren(element("b", { class: "stale" }, "Not novel."), " ", this.reason(episode, t));
    else {
      const times = player.mean > 0 ? reward / player.mean : null, above = reward >= player.mean;
      const compared = times === null ? "" : times >= 1.05 ? `, ${figure(times, 2)} times the running mean` : times < 0.01 ? ", less than 1% of the running mean" : times <= 0.95 ? `, ${Math.round(100 * times)}% of the running mean` : ", as much as the running mean";
      this.verdict.replaceChildren(element("b", { class: above ? "novel" : "stale" }, above ? "Novel:" : "Little new:"), ` earns ${figure(reward)}${compared}.`);
    }
  }

  reason(episode, t) {
    const past = earlier(episode, t);
    if (past < 0) return "It earns nothing here.";
    const at = episode.view.ids;
    return at[past] === at[t] ? `The same view as at step ${past}.` : `Nothing sets it apart from step ${past}.`;
  }
}

// How likely the agent finds each action at this step.
class Acts {
  constructor(player, root) {
    this.player = player;
    this.list = element("ul", { class: "acts" });
    root.append(element("h3", {}, "What it does next"), this.list);
  }

  draw() {
    const { player } = this, episode = player.episodes[shown.episode], t = Math.min(shown.t, episode.steps), p = colours();
    if (t >= episode.steps) return this.list.replaceChildren(element("li", { class: "over" }, endingOf(episode)));
    const taken = episode.action[t], row = episode.probabilities ? episode.probabilities[t] : null;
    if (!row) return this.list.replaceChildren(element("li", { class: "over" }, `action ${[taken].flat().map(x => figure(x)).join(", ")}`));
    this.list.replaceChildren(...row.map((share, a) => element("li", { class: a === taken ? "taken" : "" },
      element("span", { class: "name" }, player.actions[a]),
      element("span", { class: "bar" }, element("i", { style: `width:${Math.max(share * 100, 0.5)}%;background:${p.acts[a % p.acts.length]}` })),
      element("span", { class: "share" }, `${Math.round(share * 100)}%`))));
  }
}

function endingOf(episode) {
  const reward = episode.return ? `, return ${figure(episode.return)}` : "";
  if (episode.end === "terminated") return `ended after ${episode.steps} steps${reward}`;
  return episode.end === "truncated" ? `time was up after ${episode.steps} steps${reward}` : `the first ${episode.steps} steps${reward}`;
}
