// Draws StageLadder: a list of stages with bars, the chosen one's figures, and the map of its error.

const LEAST = -3;
const MOST = 7;

function barShare(used) {
  if (used === "inf") return 100;
  if (!(used > 0)) return 0;
  return Math.min(Math.max((100 * (Math.log10(used) - LEAST)) / (MOST - LEAST), 1), 100);
}

function render({ model, el }) {
  const error = errorLine(model);
  const view = model.get("grid");
  const inside = Array.from({ length: view.blocks }, (_, i) => view.inside.map((row) => row.cells[i])).flat();
  const cells = [...view.before.map((row) => row.cells[0]), ...inside, ...view.after.map((row) => row.cells[0])];
  const prefix = `labkit-stage-${crypto.randomUUID()}`;
  const list = make("div", { class: "labkit-ladder", role: "listbox", "aria-label": "Stages", tabindex: 0, onkeydown: (event) => key(event) });
  const detail = make("div", { class: "labkit-detail", "aria-live": "polite" });
  const map = make("div", { class: "labkit-map" });
  const root = make(
    "div",
    { class: "labkit labkit-stage-ladder", role: "group", "aria-label": "Stage ladder" },
    make("p", { class: "labkit-said" }, view.headline),
    legend(),
    make("p", { class: "labkit-count" }, "Bars: error in units of its budget, each tenth of the width a factor of ten; the upright line is the budget."),
    error.line,
    make("div", { class: "labkit-panels" }, list, make("div", {}, detail, map)),
  );
  const choose = (name) => {
    model.set("selected", name);
    model.save_changes();
  };
  const key = (event) => {
    const place = cells.findIndex((cell) => cell.name === model.get("selected"));
    const moves = { ArrowUp: place - 1, ArrowDown: place + 1, PageUp: place - 14, PageDown: place + 14, Home: 0, End: cells.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    choose(cells[Math.min(Math.max(moves[event.key], 0), cells.length - 1)].name);
  };
  list.append(
    ...cells.map((cell, i) =>
      make(
        "div",
        { role: "option", id: `${prefix}-${i}`, class: "labkit-stage", "data-name": cell.name, onclick: () => choose(cell.name) },
        make("span", {}, `${cell.mark} ${cell.name}`),
        make("span", { class: `labkit-rung labkit-${cell.sign}`, style: `width: ${barShare(cell.detail.used).toFixed(1)}%; --heat: 60%` }),
        make("span", { class: "labkit-count" }, cell.used),
      ),
    ),
  );
  const drawMap = () => {
    const shown = model.get("error_map");
    if (shown.cells === undefined) return map.replaceChildren();
    const rows = shown.cells.map((row) => make("tr", {}, row.map((cell) => make("td", { style: `--heat: ${(cell * 0.8).toFixed(0)}%` }))));
    const bins = shown.rows_per_cell * shown.columns_per_cell > 1 ? `; each cell the largest of ${shown.rows_per_cell} × ${shown.columns_per_cell}` : "";
    map.replaceChildren(
      make(
        "figure",
        {},
        make("figcaption", {}, `Error over ${shown.rows_axis} (down) and ${shown.columns_axis} (across) at ${shown.title}${bins}. Largest ${figure(shown.largest)} at [${shown.worst.join(", ")}]: ${figure(shown.actual)} in place of ${figure(shown.expected)}.`),
        make("table", { role: "presentation", "aria-hidden": "true" }, make("tbody", {}, rows)),
      ),
    );
  };
  const draw = () => {
    const name = model.get("selected");
    for (const node of list.children) {
      const chosen = node.dataset.name === name;
      node.setAttribute("aria-selected", String(chosen));
      if (chosen) {
        list.setAttribute("aria-activedescendant", node.id);
        const { offsetTop } = node;
        if (offsetTop < list.scrollTop || offsetTop > list.scrollTop + list.clientHeight - 24) list.scrollTop = offsetTop - list.clientHeight / 2;
      }
    }
    showStage(detail, cells.find((cell) => cell.name === name));
    drawMap();
  };
  const watched = "change:selected change:error_map";
  model.on(watched, draw);
  el.append(root);
  draw();
  requestAnimationFrame(draw);
  return () => {
    model.off(watched, draw);
    error.stop();
  };
}

export default { render };
