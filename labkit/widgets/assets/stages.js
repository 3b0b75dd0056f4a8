// Draws a grid of stages: stages down, blocks across, a sign and the error in units of its budget in each cell.

const MEANINGS = [
  ["same", "✓", "within rounding"],
  ["inherited", "→", "off, but only because its inputs were"],
  ["local", "✗", "this operation itself is wrong"],
];

function legend() {
  return make(
    "ul",
    { class: "labkit-legend" },
    MEANINGS.map(([sign, mark, meaning]) => make("li", {}, make("span", { class: `labkit-${sign}` }, mark), ` ${meaning}`)),
  );
}

function figure(value) {
  if (typeof value !== "number") return String(value);
  return value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

class StageGrid {
  constructor(select) {
    this.select = select;
    this.selected = null;
    this.head = make("p", { class: "labkit-said", "aria-live": "polite" });
    this.table = make("div", { class: "labkit-grid", onkeydown: (event) => this.key(event) });
    this.detail = make("div", { class: "labkit-detail", "aria-live": "polite" });
    this.root = make("div", {}, this.head, legend(), make("div", { class: "labkit-panels" }, this.table, this.detail));
  }

  draw(view) {
    this.view = view;
    this.head.textContent = view.headline;
    this.rows = [...view.before, ...view.inside, ...view.after];
    const cells = this.rows.flatMap((row) => row.cells);
    const first = cells.find((cell) => cell.sign === "local") ?? cells[0];
    if (!cells.some((cell) => cell.name === this.selected)) this.selected = first.name;
    const head = make(
      "tr",
      {},
      make("th", { scope: "col" }, "stage"),
      Array.from({ length: view.blocks }, (_, i) => make("th", { scope: "col" }, `block ${i}`)),
    );
    const body = [
      ...view.before.map((row) => this.drawRow(row, view.blocks)),
      ...view.inside.map((row) => this.drawRow(row, 1)),
      ...view.after.map((row) => this.drawRow(row, view.blocks)),
    ];
    const caption = make("caption", {}, "Error of each stage, in units of what rounding explains");
    redraw(this.table, make("table", {}, caption, make("thead", {}, head), make("tbody", {}, body)));
    this.show(cells.find((cell) => cell.name === this.selected));
  }

  drawRow(row, span) {
    const cells = row.cells.map((cell) => {
      const chosen = cell.name === this.selected;
      const attributes = {
        "aria-label": `${cell.name}: ${MEANINGS.find(([sign]) => sign === cell.sign)[2]}, ${cell.used} times its budget`,
        "aria-pressed": String(chosen),
        tabindex: chosen ? 0 : -1,
        "data-focus": cell.name,
      };
      const content = button(`${cell.mark} ${cell.used}`, () => this.choose(cell.name), attributes);
      return make("td", { class: `labkit-${cell.sign}`, colspan: span, style: `--heat: ${cell.heat}%` }, content);
    });
    return make("tr", {}, make("th", { scope: "row" }, row.label), cells);
  }

  choose(name) {
    this.selected = name;
    for (const node of this.table.querySelectorAll("button")) {
      const chosen = node.dataset.focus === name;
      node.setAttribute("aria-pressed", String(chosen));
      node.tabIndex = chosen ? 0 : -1;
      if (chosen) node.focus();
    }
    this.show(this.rows.flatMap((row) => row.cells).find((cell) => cell.name === name));
    this.select(name);
  }

  key(event) {
    const row = this.rows.findIndex((each) => each.cells.some((cell) => cell.name === this.selected));
    const column = this.rows[row].cells.findIndex((cell) => cell.name === this.selected);
    const places = {
      ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
      Home: [0, 0], End: [this.rows.length - 1, 0],
    };
    if (!(event.key in places)) return;
    event.preventDefault();
    const [r, c] = places[event.key];
    const there = this.rows[r]?.cells;
    const cell = there && (there.length === 1 ? there[0] : there[Math.min(c, there.length - 1)]);
    if (cell && c >= 0) this.choose(cell.name);
  }

  show(cell) {
    showStage(this.detail, cell);
  }
}

function showStage(place, { name, detail }) {
  const rows = [
    ["shape", detail.shape.join(" × ")],
    ["largest error", figure(detail.max_abs)],
    ["at", `[${detail.at.join(", ")}]`],
    ["in ULP", figure(detail.ulp)],
    ["budget there", figure(detail.budget)],
    ["share of budget, with what was inherited", figure(detail.used)],
    ["share of budget, this operation alone", figure(detail.local_used)],
    ["verdict", detail.verdict + (detail.cause ? `, ${detail.cause}` : "")],
  ].map(([label, value]) => make("tr", {}, make("th", { scope: "row" }, label), make("td", { class: "labkit-number" }, value)));
  place.replaceChildren(make("table", {}, make("caption", {}, `Stage ${name}`), make("tbody", {}, rows)));
}
