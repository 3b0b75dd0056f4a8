// Draws FaultBench: the form sets `choice`, Python runs the verification and sets `grid`.

function render({ model, el }) {
  const error = errorLine(model);
  const grid = new StageGrid(() => {});
  const fault = make(
    "select",
    { onchange: () => send() },
    model.get("faults").map((each) => make("option", { value: each.name }, `${each.name}: ${each.mistake}`)),
  );
  const block = make("select", { onchange: () => send() });
  const prompt = textInput({ maxlength: 1000, class: "labkit-wide" });
  const findings = make("ul", { class: "labkit-findings", "aria-label": "Findings" });
  const status = make("output", { class: "labkit-count" });
  const send = () => {
    model.set("choice", { fault: fault.value, block: Number(block.value), prompt: prompt.value });
    model.save_changes();
  };
  const form = make(
    "form",
    { onsubmit: (event) => { event.preventDefault(); send(); } },
    make("div", { class: "labkit-row" }, labelled("Fault", fault), labelled("Block", block)),
    make("div", { class: "labkit-row" }, labelled("Prompt", prompt), make("button", { type: "submit" }, "Verify"), status),
  );
  const root = make("div", { class: "labkit labkit-fault-bench", role: "group", "aria-label": "Fault bench" }, form, error.line, findings, grid.root);
  let drawn = null;
  const draw = () => {
    const choice = model.get("choice");
    const view = model.get("grid");
    const blocks = view.blocks ?? 1;
    if (block.options.length !== blocks) {
      block.replaceChildren(...Array.from({ length: blocks }, (_, i) => make("option", { value: i }, String(i))));
    }
    fault.value = choice.fault;
    block.value = String(choice.block);
    block.disabled = choice.fault === fault.options[0].value;
    if (document.activeElement !== prompt) prompt.value = choice.prompt;
    const busy = model.get("busy");
    root.setAttribute("aria-busy", String(busy));
    status.textContent = busy ? "verifying…" : "";
    if (view.blocks === undefined || view === drawn) return;
    drawn = view;
    grid.selected = null; // a new run starts at the operation to blame
    grid.draw(view);
    findings.replaceChildren(...model.get("findings").map((text) => make("li", {}, text)));
  };
  const watched = "change:choice change:grid change:busy";
  model.on(watched, draw);
  draw();
  el.append(root);
  return () => {
    model.off(watched, draw);
    error.stop();
  };
}

export default { render };
