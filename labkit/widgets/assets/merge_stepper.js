// Draws the panels and views of MergeStepper. A panel is what the user chose, a view what Python made of it.

const PLAY_MS = 900;

class Panel {
  constructor(model, index) {
    this.model = model;
    this.index = index;
    this.timer = null;
    this.root = make("section", { class: "labkit-panel", "aria-label": `Text ${index + 1}` });
    this.text = textInput({ maxlength: 2000 });
    this.form = make(
      "form",
      { class: "labkit-row", onsubmit: (event) => this.encode(event) },
      labelled("Text", this.text),
      make("button", { type: "submit" }, "Split and merge"),
    );
    this.pieces = make("div", { class: "labkit-row labkit-pieces", role: "group", "aria-label": "Pieces" });
    this.slider = make("input", {
      type: "range", min: 0, step: 1, "aria-label": "Step", oninput: () => this.go(Number(this.slider.value)),
    });
    this.play = button("Play", () => this.toggle(), { "aria-pressed": "false" });
    this.count = make("span", { class: "labkit-count" });
    this.controls = make(
      "div",
      { class: "labkit-row", role: "group", "aria-label": "Steps", onkeydown: (event) => this.key(event) },
      button("First", () => this.go(0)),
      button("Back", () => this.go(this.step - 1)),
      this.slider,
      button("Next", () => this.go(this.step + 1)),
      button("Last", () => this.go(this.last)),
      this.play,
      this.count,
    );
    this.body = make("div", { class: "labkit-body" });
    this.said = make("p", { class: "labkit-said", "aria-live": "polite" });
    this.copied = make("output", { class: "labkit-count" });
    this.foot = make(
      "div",
      { class: "labkit-row labkit-foot" },
      button("Copy state", () => this.copy()),
      index === 0
        ? button("Compare with another text", () => this.addPanel(), { class: "labkit-add" })
        : button("Remove this text", () => this.removePanel()),
      this.copied,
    );
    this.root.append(this.form, this.pieces, this.controls, this.said, this.body, this.foot);
  }

  get panel() { return this.model.get("panels")[this.index]; }
  get view() { return this.model.get("views")[this.index]; }
  get last() { return Math.max((this.view?.states.length ?? 1) - 1, 0); }
  get step() { return Math.min(Math.max(this.panel.step, 0), this.last); }

  change(fields) {
    const panels = this.model.get("panels").map((each, i) => (i === this.index ? { ...each, ...fields } : each));
    this.model.set("panels", panels);
    this.model.save_changes();
  }

  encode(event) {
    event.preventDefault();
    this.stop();
    this.change({ text: this.text.value, piece: 0, step: 0 });
  }

  go(step) { this.change({ step: Math.min(Math.max(step, 0), this.last) }); }

  key(event) {
    if (event.target === this.slider) return; // a range input knows these keys itself
    const moves = { ArrowLeft: this.step - 1, ArrowRight: this.step + 1, Home: 0, End: this.last };
    if (event.key in moves) {
      event.preventDefault();
      this.go(moves[event.key]);
    }
  }

  toggle() {
    if (this.timer !== null) return this.stop();
    if (this.step === this.last) this.go(0);
    this.timer = setInterval(() => (this.step < this.last ? this.go(this.step + 1) : this.stop()), PLAY_MS);
    this.play.textContent = "Pause";
    this.play.setAttribute("aria-pressed", "true");
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "Play";
    this.play.setAttribute("aria-pressed", "false");
  }

  async copy() {
    const { text, piece, step } = this.panel;
    const ascii = JSON.stringify(text).replace(/[\u007f-\uffff]/g, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
    const state = `{"format": "labkit-merges-1", "text": ${ascii}, "piece": ${piece}, "step": ${step}}`;
    this.copied.textContent = (await copyText(state)) ? "Copied" : state;
  }

  addPanel() {
    this.model.set("panels", [...this.model.get("panels"), { text: this.panel.text, piece: 0, step: 0 }]);
    this.model.save_changes();
  }

  removePanel() {
    this.stop();
    this.model.set("panels", this.model.get("panels").slice(0, this.index));
    this.model.save_changes();
  }

  draw() {
    const { panel, view } = this;
    if (document.activeElement !== this.text) this.text.value = panel.text;
    const known = view && view.text === panel.text && view.states.length > 0;
    this.root.setAttribute("aria-busy", String(!known));
    if (!view) return;
    redraw(this.pieces, view.pieces.map((piece, i) => this.drawPiece(piece, i)));
    this.slider.max = this.last;
    this.slider.value = this.step;
    this.slider.setAttribute("aria-valuetext", `${this.step} of ${this.last}`);
    this.count.textContent = `step ${this.step} of ${this.last}`;
    if (view.states.length === 0) {
      this.said.textContent = "The text has no pieces.";
      this.body.replaceChildren();
      return;
    }
    const state = view.states[this.step];
    this.said.textContent = state.why;
    redraw(this.body, this.drawSymbols(state), this.drawCandidates(state), this.drawTree());
  }

  drawPiece(piece, i) {
    const pressed = i === this.view.piece;
    return button(piece.label, () => this.change({ piece: i, step: 0 }), {
      "aria-pressed": String(pressed), title: `${piece.why}; bytes ${piece.bytes}; ids ${piece.ids.join(" ")}`, "data-focus": `piece-${i}`,
    });
  }

  drawSymbols(state) {
    const joined = new Set(state.places.flatMap((place) => [place, place + 1]));
    const cells = state.symbols.map((symbol, i) =>
      make(
        "li",
        { class: joined.has(i) ? "labkit-symbol labkit-joined" : "labkit-symbol" },
        make("b", {}, symbol.text),
        make("span", {}, symbol.bytes),
        make("span", {}, `id ${symbol.id}`),
      ),
    );
    return make("ol", { class: "labkit-symbols", "aria-label": "Symbols now; those underlined are merged next" }, cells);
  }

  drawCandidates(state) {
    const head = make("tr", {}, ["pair", "rank", "line of merges.txt", "where", "outcome"].map((name) => make("th", { scope: "col" }, name)));
    const rows = state.candidates.map((each, i) =>
      make(
        "tr",
        { class: i === 0 ? "labkit-winner" : "" },
        make("td", {}, `${each.left} + ${each.right}`),
        make("td", { class: "labkit-number" }, String(each.rank)),
        make("td", {}, each.line === null ? "" : `${each.line}: ${each.left} ${each.right}`),
        make("td", {}, each.places.map((place) => place + 1).join(", ")),
        make("td", {}, i === 0 ? `merged now, makes ${state.made.text} = ${state.made.id}` : ""),
      ),
    );
    if (rows.length === 0) rows.push(make("tr", {}, make("td", { colspan: 5 }, "none: no two neighbours stand in merges.txt")));
    return make("table", {}, make("caption", {}, "Pairs that could be merged"), make("thead", {}, head), make("tbody", {}, rows));
  }

  // Each symbol as the tree of the merges that made it, replayed from the states before this one.
  drawTree() {
    const { states } = this.view;
    let nodes = states[0].symbols.map((symbol) => ({ symbol, rank: null, children: [] }));
    for (const { places, made, candidates } of states.slice(0, this.step)) {
      for (const place of [...places].reverse()) {
        nodes.splice(place, 2, { symbol: made, rank: candidates[0].rank, children: nodes.slice(place, place + 2) });
      }
    }
    return make("ul", { class: "labkit-tree", "aria-label": "Tree of merges so far" }, nodes.map(drawNode));
  }
}

function drawNode({ symbol, rank, children }) {
  const label = rank === null ? symbol.text : `${symbol.text} (rank ${rank})`;
  return make("li", {}, make("span", {}, label), children.length ? make("ul", {}, children.map(drawNode)) : null);
}

function render({ model, el }) {
  const error = errorLine(model);
  const row = make("div", { class: "labkit-panels" });
  const root = make("div", { class: "labkit labkit-merge-stepper", role: "group", "aria-label": "Merge stepper" }, row, error.line);
  let panels = [];
  const draw = () => {
    const wanted = model.get("panels").length;
    if (wanted !== panels.length) {
      panels.slice(wanted).forEach((panel) => panel.stop());
      while (panels.length < wanted) panels.push(new Panel(model, panels.length));
      panels = panels.slice(0, wanted);
      row.replaceChildren(...panels.map((panel) => panel.root));
    }
    row.querySelectorAll(".labkit-add").forEach((node) => { node.hidden = wanted > 1; });
    panels.forEach((panel) => panel.draw());
  };
  model.on("change:panels change:views", draw);
  draw();
  el.append(root);
  return () => {
    panels.forEach((panel) => panel.stop());
    model.off("change:panels change:views", draw);
    error.stop();
  };
}

export default { render };
