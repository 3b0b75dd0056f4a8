// Draws Sampler: sliders set `choice`, Python computes the distributions in `view`.

const SLIDERS = [
  ["temperature", "Temperature", { min: 0.05, max: 3, step: 0.05 }, (value) => value.toFixed(2)],
  ["top_k", "Top-k (0: off)", { min: 0, max: 50, step: 1 }, (value) => String(value)],
  ["top_p", "Top-p (1: off)", { min: 0.05, max: 1, step: 0.01 }, (value) => value.toFixed(2)],
  ["min_p", "Min-p (0: off)", { min: 0, max: 1, step: 0.01 }, (value) => value.toFixed(2)],
];

function render({ model, el }) {
  const error = errorLine(model);
  const prompt = textInput({ maxlength: 1000, class: "labkit-wide" });
  const send = (fields) => {
    model.set("choice", { ...model.get("choice"), ...fields });
    model.save_changes();
  };
  const form = make(
    "form",
    { class: "labkit-row", onsubmit: (event) => { event.preventDefault(); send({ prompt: prompt.value }); } },
    labelled("Prompt", prompt),
    make("button", { type: "submit" }, "Run"),
  );
  const sliders = SLIDERS.map(([name, label, limits, show]) => {
    const input = make("input", { type: "range", ...limits, oninput: () => send({ [name]: Number(input.value) }) });
    const value = make("output", { class: "labkit-count" });
    return { name, input, value, show, field: make("div", { class: "labkit-slider" }, labelled(label, input), value) };
  });
  const drawn = make("output", { class: "labkit-count" });
  const draws = make(
    "div",
    { class: "labkit-row" },
    button("Draw a token", () => {
      model.set("draws", model.get("draws") + 1);
      model.save_changes();
    }),
    drawn,
  );
  const body = make("div", { class: "labkit-body" });
  const root = make(
    "div",
    { class: "labkit labkit-sampler", role: "group", "aria-label": "Sampler" },
    form, make("div", { class: "labkit-row" }, sliders.map((slider) => slider.field)), error.line, body, draws,
  );
  const bar = (part, before) => {
    const text = part === 0 ? "cut" : `${(part / 1e4).toFixed(part < 1e4 ? 2 : 1)}`;
    const mark = part === 0 ? "labkit-cut" : "labkit-bar";
    const change = part > before ? " ▲" : part < before && part > 0 ? " ▼" : "";
    return make("td", { class: `labkit-number ${mark}`, style: `--part: ${(part / 1e4).toFixed(2)}%` }, text + change);
  };
  const drawView = (view) => {
    const head = make("tr", {}, make("th", { scope: "col" }, "token"), view.steps.map((step) => make("th", { scope: "col" }, step)));
    const cells = (parts) => parts.map((part, i) => bar(part, parts[Math.max(i - 1, 0)]));
    const rows = view.rows.map((row) => make("tr", {}, make("th", { scope: "row" }, `${row.label} (${row.id})`), cells(row.parts)));
    rows.push(make("tr", {}, make("th", { scope: "row" }, "all others"), cells(view.rest)));
    const counts = (name, values) =>
      make("tr", {}, make("th", { scope: "row" }, name), values.map((value) => make("td", { class: "labkit-number" }, String(value))));
    rows.push(counts("tokens left", view.kept), counts("entropy (nats)", view.entropy));
    const caption = "Probability of the next token after each step, in percent; ▲ ▼ against the step before";
    body.replaceChildren(make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, rows)));
  };
  const draw = () => {
    const choice = model.get("choice");
    const view = model.get("view");
    if (document.activeElement !== prompt) prompt.value = choice.prompt;
    for (const { name, input, value, show } of sliders) {
      input.value = choice[name];
      value.textContent = show(Number(choice[name]));
    }
    drawn.textContent = model.get("drawn");
    if (view.rows !== undefined) drawView(view);
  };
  const watched = "change:view change:choice change:drawn";
  model.on(watched, draw);
  draw();
  el.append(root);
  return () => {
    model.off(watched, draw);
    error.stop();
  };
}

export default { render };
