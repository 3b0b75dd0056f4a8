// Draws HeaderExplorer: a page of tensors at a time.

const SORTS = { offset: "place in the file", name: "name", size: "size, largest first" };

class Explorer {
  constructor(model) {
    this.model = model;
    this.file = make("p", { class: "labkit-said" });
    this.facts = make("table", {});
    this.search = make("input", { type: "text", spellcheck: "false", oninput: () => this.ask({ search: this.search.value, page: 0 }) });
    this.sort = make("select", { onchange: () => this.ask({ sort: this.sort.value, page: 0 }) },
      Object.entries(SORTS).map(([value, label]) => make("option", { value }, label)));
    this.count = make("span", { class: "labkit-count", "aria-live": "polite" });
    this.back = button("Previous page", () => this.ask({ page: this.view.page - 1 }));
    this.next = button("Next page", () => this.ask({ page: this.view.page + 1 }));
    this.list = make("div", { class: "labkit-list" });
    this.chosen = make("div", { "aria-live": "polite" });
    this.root = make("div", {},
      this.file,
      this.facts,
      make("div", { class: "labkit-row" }, labelled("Name holds", this.search), labelled("Order", this.sort)),
      make("div", { class: "labkit-row" }, this.back, this.next, this.count),
      this.list,
      this.chosen);
    this.search.value = this.view.search;
  }

  get view() { return this.model.get("view"); }

  ask(fields) {
    this.model.set("asked", { ...this.model.get("asked"), ...fields });
    this.model.save_changes();
  }

  draw() {
    const view = this.view;
    this.file.textContent = view.file;
    this.facts.replaceChildren(this.lines([...view.facts, ...view.metadata.map(([key, value]) => [`metadata ${key}`, value])]));
    this.sort.value = view.sort;
    this.back.disabled = view.page === 0;
    this.next.disabled = view.page + 1 >= view.pages;
    this.count.textContent = `${view.count.toLocaleString("en")} tensors, page ${view.page + 1} of ${view.pages}`;
    const heads = ["tensor", "dtype", "shape", "bytes", "begin", "end"].map((name) => make("th", { scope: "col" }, name));
    redraw(this.list, make("table", {}, make("thead", {}, make("tr", {}, heads)),
      make("tbody", {}, view.tensors.map((tensor) => this.row(tensor)))));
    this.chosen.replaceChildren(...(view.chosen === null ? [] : [
      make("table", {}, make("caption", {}, view.chosen.name), this.lines(view.chosen.facts)),
    ]));
  }

  lines(facts) {
    return make("tbody", {}, facts.map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value))));
  }

  row(tensor) {
    const pressed = this.view.chosen?.name === tensor.name ? "true" : "false";
    const name = button(tensor.name, () => this.ask({ chosen: tensor.name }), { "aria-pressed": pressed, "data-focus": tensor.name });
    const numbers = [tensor.nbytes, tensor.begin, tensor.end];
    return make("tr", {},
      make("td", {}, name),
      make("td", {}, tensor.dtype),
      make("td", {}, `[${tensor.shape.join(", ")}]`),
      numbers.map((number) => make("td", { class: "labkit-number" }, number.toLocaleString("en"))));
  }
}

function render({ model, el }) {
  el.classList.add("labkit", "labkit-header-explorer");
  const explorer = new Explorer(model);
  const error = errorLine(model);
  const draw = () => explorer.draw();
  model.on("change:view", draw);
  el.append(explorer.root, error.line);
  explorer.draw();
  return () => {
    model.off("change:view", draw);
    error.stop();
  };
}

export default { render };
