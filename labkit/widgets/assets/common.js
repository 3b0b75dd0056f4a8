// Shared by every widget. Elements are built, never parsed: no text of a file or a user is read as markup.

// JupyterLab takes single keys (a, b, x) from any focused element that does not carry this attribute itself.
const SUPPRESS = "data-lm-suppress-shortcuts";

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  if (node.matches("button, input, select, textarea, [tabindex]")) node.setAttribute(SUPPRESS, "true");
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

function button(label, onclick, attributes = {}) {
  return make("button", { type: "button", onclick, ...attributes }, label);
}

function labelled(text, control) {
  return make("label", { class: "labkit-field" }, make("span", {}, text), control);
}

// A line of text whose Enter key sends its form; JupyterLab keeps the browser from doing so by itself.
function textInput(attributes = {}) {
  const send = (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    event.target.form.requestSubmit();
  };
  return make("input", { type: "text", spellcheck: "false", onkeydown: send, ...attributes });
}

// Rebuilds the children of a node and keeps the focus on the control that had it, known by its data-focus.
function redraw(node, ...children) {
  const held = node.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  if (held !== undefined) node.querySelector(`[data-focus="${CSS.escape(held)}"]`)?.focus();
}

function errorLine(model) {
  const line = make("p", { class: "labkit-error", role: "alert" });
  const show = () => {
    line.textContent = model.get("error");
    line.hidden = line.textContent === "";
  };
  model.on("change:error", show);
  show();
  return { line, stop: () => model.off("change:error", show) };
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
