// Draws the charts in the reader's theme, with the values under the pointer; and the theme's switch.
"use strict";

const { specifications, config, dark } = JSON.parse(document.getElementById("charts").textContent);
const system = matchMedia("(prefers-color-scheme: dark)");
const theme = document.getElementById("theme"), tip = document.getElementById("tip");
const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";

// A specification names the light colours.
const inTheme = (value) => (typeof value === "string" && isDark() && dark[value]) || value;
const coloured = (part) => JSON.parse(JSON.stringify(part, (_, value) => inTheme(value)));

const element = (tag, textContent) => Object.assign(document.createElement(tag), { textContent });
const clamp = (value, most) => `${Math.max(4, Math.min(most - 4, value))}px`;

// Vega calls it with the values of the mark under the pointer; nothing where there is none. Never markup: names come
// from checkpoints.
function tooltip(_, event, item, values) {
  if (values || !isFinger) tip.hidden = !values;
  if (!values) return;
  tip.replaceChildren(...Object.entries(values).map(([name, value]) => {
    const line = element("div", "");
    line.append(element("span", name), element("b", value || "no value"));
    return line;
  }));
  const { width, height } = tip.getBoundingClientRect(), below = event.clientY + 16;
  tip.style.left = clamp(event.clientX + 16, innerWidth - width);
  tip.style.top = clamp(below + height < innerHeight ? below : event.clientY - height - 16, innerHeight - height);
}

function draw() {
  theme.textContent = isDark() ? "Light" : "Dark";
  const options = { mode: "vega-lite", config: coloured(config), actions: false, ast: true, renderer: "svg", tooltip };
  return Promise.all([...document.querySelectorAll(".chart")].map(
    (place) => vegaEmbed(place, coloured(specifications[place.dataset.chart]), options)));
}

theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  draw();
});
system.addEventListener("change", draw);
theme.hidden = false;
draw().then(() => (document.body.dataset.drawn = "yes"));

// A finger shows values as a pointer does; they stay when it is lifted, until it taps elsewhere.
let isFinger = false;
document.addEventListener("pointermove", (event) => (isFinger = event.pointerType === "touch"), true);
document.addEventListener("pointerdown", (event) => {
  if (!event.target.closest(".chart")) tip.hidden = true;
  else if (event.pointerType === "touch") event.target.dispatchEvent(new PointerEvent("pointermove", event));
});
addEventListener("scroll", () => (tip.hidden = true), { passive: true });

// The arrow keys go from mark to mark of the chart that has the focus, as a pointer would.
const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const reached = new WeakMap(); // the mark of each chart
function middle(mark) {
  const { left, top, width, height } = mark.getBoundingClientRect();
  return [left + width / 2, top + height / 2];
}
const send = (mark, type, [clientX, clientY]) =>
  mark?.dispatchEvent(new PointerEvent(type, { bubbles: true, clientX, clientY }));

function neighbour(mark, marks, [right, down]) {
  const [x, y] = middle(mark);
  const far = (other) => {
    const [toRight, below] = [middle(other)[0] - x, middle(other)[1] - y];
    const ahead = right * toRight + down * below, aside = Math.abs(down * toRight) + Math.abs(right * below);
    return ahead > 0.5 ? ahead + 100 * aside : Infinity;
  };
  return marks.map((other) => [far(other), other]).sort(([one], [two]) => one - two)[0];
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") tip.hidden = true;
  const chart = event.target.closest(".chart"), step = steps[event.key];
  if (!chart || !step) return;
  event.preventDefault();
  const marks = [...[...chart.querySelectorAll(".mark-rect.role-mark")].at(-1).children], before = reached.get(chart);
  const [far, next] = marks.includes(before) ? neighbour(before, marks, step) : [0, marks[0]];
  const mark = far === Infinity ? before : next;
  if (mark !== before) send(before, "pointerout", [0, 0]);
  for (const type of ["pointerover", "pointermove"]) send(mark, type, middle(mark));
  reached.set(chart, mark);
});
