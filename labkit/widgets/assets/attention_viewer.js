// Draws AttentionViewer: a small picture for each head, the chosen one large with tokens on both axes.

const UNIT = 10000;

function drawSmall(canvas, pattern) {
  const size = pattern.length;
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d");
  pattern.forEach((row, query) =>
    row.forEach((share, key) => {
      context.fillStyle = `rgba(0, 114, 178, ${Math.sqrt(share / UNIT)})`;
      context.fillRect(key, query, 1, 1);
    }),
  );
}

function render({ model, el }) {
  const error = errorLine(model);
  const prompt = textInput({ maxlength: 1000, class: "labkit-wide" });
  const block = make("select", { onchange: () => send({ block: Number(block.value) }) });
  const form = make(
    "form",
    { class: "labkit-row", onsubmit: (event) => { event.preventDefault(); send({ prompt: prompt.value }); } },
    labelled("Prompt", prompt),
    make("button", { type: "submit" }, "Run"),
    labelled("Block", block),
  );
  const heads = make("div", { class: "labkit-row labkit-heads", role: "group", "aria-label": "Heads", onkeydown: (event) => key(event) });
  const said = make("p", { class: "labkit-said", "aria-live": "polite" });
  const large = make("div", { class: "labkit-attention", onmouseover: (event) => point(event), onfocusin: (event) => point(event), onkeydown: (event) => walk(event) });
  const root = make(
    "div",
    { class: "labkit labkit-attention-viewer", role: "group", "aria-label": "Attention viewer" },
    form, error.line, heads, said, large,
  );
  const send = (fields) => {
    model.set("choice", { ...model.get("choice"), ...fields });
    model.save_changes();
  };
  const chosen = () => Math.min(model.get("choice").head, model.get("view").heads - 1);
  const key = (event) => {
    const moves = { ArrowLeft: chosen() - 1, ArrowRight: chosen() + 1, Home: 0, End: model.get("view").heads - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    send({ head: Math.min(Math.max(moves[event.key], 0), model.get("view").heads - 1) });
    heads.querySelector('[aria-pressed="true"]')?.focus();
  };
  const point = (event) => {
    const { query, key: seen } = event.target.dataset;
    if (query === undefined) return;
    const view = model.get("view");
    const share = view.patterns[chosen()][query][seen] / UNIT;
    said.textContent = `${view.tokens[query]} (${query}) attends to ${view.tokens[seen]} (${seen}): ${(100 * share).toFixed(1)} %`;
  };
  const walk = (event) => {
    const { query, key: seen } = event.target.dataset;
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (query === undefined || !(event.key in moves)) return;
    event.preventDefault();
    const [down, right] = moves[event.key];
    large.querySelector(`[data-query="${Number(query) + down}"][data-key="${Number(seen) + right}"]`)?.focus();
  };
  const drawLarge = (view) => {
    const pattern = view.patterns[chosen()];
    const head = make("tr", {}, make("td", {}, "from ↓ to →"), view.tokens.map((token) => make("th", { scope: "col" }, make("span", {}, token))));
    const rows = pattern.map((row, query) =>
      make(
        "tr",
        {},
        make("th", { scope: "row" }, view.tokens[query]),
        view.tokens.map((_, seen) => {
          if (seen > query) return make("td", { class: "labkit-future" });
          const share = row[seen] / UNIT;
          return make(
            "td",
            { tabindex: query === 0 ? 0 : -1, "data-query": query, "data-key": seen, style: `--heat: ${(70 * Math.sqrt(share)).toFixed(1)}%` },
            String(Math.round(100 * share)),
          );
        }),
      ),
    );
    const caption = `Block ${view.block}, head ${chosen()}: attention in percent; each row adds up to 100`;
    large.replaceChildren(make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, rows)));
  };
  const draw = () => {
    const view = model.get("view");
    const choice = model.get("choice");
    if (document.activeElement !== prompt) prompt.value = choice.prompt;
    if (view.heads === undefined) return;
    if (block.options.length !== view.blocks) {
      block.replaceChildren(...Array.from({ length: view.blocks }, (_, i) => make("option", { value: i }, String(i))));
    }
    block.value = String(view.block);
    redraw(
      heads,
      view.patterns.map((pattern, head) => {
        const canvas = make("canvas", { "aria-hidden": "true" });
        drawSmall(canvas, pattern);
        return button([canvas, `head ${head}`], () => send({ head }), {
          "aria-pressed": String(head === chosen()), tabindex: head === chosen() ? 0 : -1, "data-focus": `head-${head}`,
        });
      }),
    );
    said.textContent = "";
    drawLarge(view);
  };
  model.on("change:view change:choice", draw);
  draw();
  el.append(root);
  return () => {
    model.off("change:view change:choice", draw);
    error.stop();
  };
}

export default { render };
