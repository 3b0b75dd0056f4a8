// Draws HexViewer: asks Python for the rows in view, never for the file.

const ROW = 16;

class Hex {
  constructor(model) {
    this.model = model;
    this.goal = textInput({ placeholder: "offset, 0x offset, or a tensor's name" });
    this.form = make(
      "form",
      { class: "labkit-row", onsubmit: (event) => this.go(event) },
      labelled("Go to", this.goal),
      make("button", { type: "submit" }, "Go"),
    );
    this.search = make("input", {
      type: "text", spellcheck: "false", "data-focus": "search",
      oninput: () => this.change({ search: this.search.value }),
    });
    this.found = make("ul", { class: "labkit-found", "aria-label": "Tensors" });
    this.slider = make("input", {
      type: "range", min: 0, step: 1, "aria-label": "Row of the file", oninput: () => this.scroll(Number(this.slider.value)),
    });
    this.count = make("span", { class: "labkit-count" });
    this.body = make("tbody");
    this.grid = make(
      "table",
      { role: "grid", "aria-label": "Bytes", onkeydown: (event) => this.key(event), onclick: (event) => this.click(event) },
      this.body,
    );
    this.table = make("div", { class: "labkit-hex", onwheel: (event) => this.wheel(event) }, this.grid);
    this.said = make("p", { class: "labkit-said", "aria-live": "polite" });
    this.bits = make("ul", { class: "labkit-bits", "aria-label": "Bit fields" });
    this.root = make(
      "div",
      {},
      this.form,
      make("div", { class: "labkit-row" }, this.slider, this.count),
      this.table,
      this.said,
      this.bits,
      make("details", { class: "labkit-foot" },
        make("summary", {}, "Tensors"),
        make("div", { class: "labkit-row" }, labelled("Name holds", this.search)),
        this.found),
    );
  }

  get view() { return this.model.get("view"); }

  change(fields) {
    this.model.set("place", { ...this.model.get("place"), ...fields });
    this.model.save_changes();
  }

  go(event) {
    event.preventDefault();
    this.model.send({ go: this.goal.value });
  }

  choose(at) {
    const last = this.view.nbytes - 1;
    this.change({ at: Math.min(Math.max(at, 0), last), top: this.view.top });
  }

  // Moves the window; the chosen byte goes along, in its column, so that it is always in view.
  scroll(row) {
    const rows = Math.ceil(this.view.nbytes / ROW);
    const first = Math.min(Math.max(row, 0), rows - 1);
    const shift = first * ROW - this.view.top;
    this.change({ top: first * ROW, at: Math.min(Math.max(this.view.at + shift, 0), this.view.nbytes - 1) });
  }

  wheel(event) {
    if (event.ctrlKey || event.deltaY === 0 || !this.grid.contains(document.activeElement)) return; // the page scrolls
    event.preventDefault();
    this.scroll(this.view.top / ROW + Math.sign(event.deltaY) * 3);
  }

  key(event) {
    const page = this.view.rows.length * ROW;
    const line = this.view.at - (this.view.at % ROW);
    const moves = {
      ArrowLeft: this.view.at - 1, ArrowRight: this.view.at + 1, ArrowUp: this.view.at - ROW, ArrowDown: this.view.at + ROW,
      PageUp: this.view.at - page, PageDown: this.view.at + page,
      Home: event.ctrlKey ? 0 : line, End: event.ctrlKey ? this.view.nbytes - 1 : line + ROW - 1,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    event.stopPropagation();
    this.choose(moves[event.key]);
  }

  click(event) {
    const cell = event.target.closest("td[data-offset]");
    if (cell) this.choose(Number(cell.dataset.offset));
  }

  draw() {
    const view = this.view;
    const rows = Math.ceil(view.nbytes / ROW);
    this.slider.max = Math.max(rows - 1, 0);
    this.slider.value = view.top / ROW;
    this.slider.setAttribute("aria-valuetext", `byte ${view.top} of ${view.nbytes}`);
    this.count.textContent = `byte ${view.at.toLocaleString("en")} of ${view.nbytes.toLocaleString("en")}`;
    const held = this.grid.contains(document.activeElement);
    this.body.replaceChildren(...view.rows.map((row) => this.row(row)));
    if (held) this.body.querySelector(".labkit-chosen")?.focus();
    this.said.textContent = view.meaning;
    this.bits.replaceChildren(...view.fields.map((field) => make("li", {}, `${field.name} ${field.bits}`)));
    redraw(this.found, view.found.map((tensor) => this.tensor(tensor)),
      view.hidden ? make("li", { class: "labkit-count" }, `and ${view.hidden} more`) : null);
  }

  row(row) {
    const cells = [];
    const texts = [];
    for (let i = 0; i < row.owners.length; i += 1) {
      const octet = row.bytes.slice(2 * i, 2 * i + 2);
      const owner = this.view.owners[row.owners[i]];
      const offset = row.offset + i;
      const chosen = offset === this.view.at;
      const owned = this.view.at >= owner.begin && this.view.at < owner.end;
      const marks = [owner.kind === "element" ? `labkit-element-${owner.colour}` : `labkit-${owner.kind}`];
      if (owned) marks.push("labkit-owned");
      if (chosen) marks.push("labkit-chosen");
      cells.push(make("td", {
        class: marks.join(" "), role: "gridcell", "data-offset": offset, tabindex: chosen ? "0" : "-1",
        "aria-selected": chosen ? "true" : "false",
        title: owner.kind === "element" ? `${owner.meaning} of ${owner.tensor}` : owner.meaning,
      }, octet));
      const code = parseInt(octet, 16);
      texts.push(make("td", { class: `labkit-text ${marks[0]}`, "aria-hidden": "true", "data-offset": offset },
        code >= 32 && code < 127 ? String.fromCharCode(code) : "·"));
    }
    for (let i = cells.length; i < ROW; i += 1) cells.push(make("td"));
    return make("tr", {}, make("th", { scope: "row" }, row.offset.toLocaleString("en")), cells, make("td", { class: "labkit-gap" }), texts);
  }

  tensor(tensor) {
    const label = `${tensor.name}  ${tensor.dtype} [${tensor.shape.join(", ")}]  bytes ${tensor.begin} to ${tensor.end}`;
    const first = Math.min(tensor.begin, this.view.nbytes - 1);
    return make("li", {}, button(label, () => this.change({ at: first, top: first })));
  }
}

function render({ model, el }) {
  el.classList.add("labkit", "labkit-hex-viewer");
  const hex = new Hex(model);
  const error = errorLine(model);
  const draw = () => hex.draw();
  model.on("change:view", draw);
  el.append(hex.root, error.line);
  hex.draw();
  return () => {
    model.off("change:view", draw);
    error.stop();
  };
}

export default { render };
