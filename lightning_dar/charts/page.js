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
