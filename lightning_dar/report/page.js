// Values under the pointer, the finger or the arrow keys, looked up in each chart's table; and the theme's switch.
"use strict";

const tip = document.getElementById("tip");
let active = null; // the plot whose values it shows

function element(tag, text, className = "") {
  const made = document.createElement(tag);
  made.textContent = text; // never markup: names come from checkpoints
  made.className = className;
  return made;
}

const clamp = (value, most) => Math.max(0, Math.min(most, value));

class Plot {
  constructor(plot) {
    this.plot = plot;
    this.kind = plot.dataset.kind;
    this.table = plot.closest("figure").querySelector("table");
    this.keys = [...plot.closest("figure").querySelectorAll(".legend li")];
    this.places = (plot.dataset.at || "").split(" ").filter(Boolean).map(Number);
    this.rows = this.kind === "lines" ? this.places.length : Number(plot.dataset.rows);
    this.columns = Number(plot.dataset.columns || 1);
    this.row = this.column = 0;
    this.cursor = plot.appendChild(element("div", "", "cursor"));
    this.cursor.hidden = true;
    for (const event of ["pointermove", "pointerdown"]) plot.addEventListener(event, (at) => this.point(at));
    plot.addEventListener("pointerleave", (at) => at.pointerType === "mouse" && this.hide());
    plot.addEventListener("focus", () => plot.matches(":focus-visible") && this.show());
    plot.addEventListener("blur", () => this.hide());
    plot.addEventListener("keydown", (event) => this.key(event));
  }

  point(event) {
    const box = this.plot.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
    if (this.kind === "lines") {
      const distances = this.places.map((place) => Math.abs(place - x));
      this.row = distances.indexOf(Math.min(...distances));
    } else {
      this.row = clamp(Math.floor(y * this.rows), this.rows - 1);
      this.column = clamp(Math.floor(x * this.columns), this.columns - 1);
    }
    this.show();
  }

  key(event) {
    if (event.key === "Escape") return this.hide();
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    const [right, down] = move;
    if (this.kind === "lines") this.row = clamp(this.row + right - down, this.rows - 1);
    else if (this.kind === "bars") this.row = clamp(this.row + right + down, this.rows - 1);
    else {
      this.row = clamp(this.row + down, this.rows - 1);
      this.column = clamp(this.column + right, this.columns - 1);
    }
    this.show();
  }

  // The cursor's box in shares of the plot: left, top, width, height.
  box() {
    if (this.kind === "lines") return [this.places[this.row], 0, 0, 1];
    if (this.kind === "bars") return [0, this.row / this.rows, 1, 1 / this.rows];
    return [this.column / this.columns, this.row / this.rows, 1 / this.columns, 1 / this.rows];
  }

  show() {
    if (active !== this) active?.hide();
    active = this;
    const [left, top, width, height] = this.box().map((share) => `${100 * share}%`);
    Object.assign(this.cursor.style, { left, top, width, height });
    this.cursor.hidden = false;
    tip.replaceChildren(...(this.kind === "heat" ? this.cell() : this.values()));
    tip.hidden = false;
    this.place(this.cursor.getBoundingClientRect(), tip.getBoundingClientRect());
  }

  // Beside the cursor where there is room; on a phone above it. Bars have it below.
  place(at, room) {
    const after = at.right + 12, before = at.left - room.width - 12;
    let [x, y] = [after + room.width < innerWidth ? after : before, at.top];
    if (this.kind === "bars") [x, y] = [at.right - room.width, at.bottom + 6];
    else if (x < 0) [x, y] = [at.left - room.width / 2, at.top - room.height - 6];
    tip.style.left = `${clamp(x, innerWidth - room.width - 4)}px`;
    tip.style.top = `${clamp(y, innerHeight - room.height - 4)}px`;
  }

  values() {
    const names = this.table.tHead.rows[0].cells, cells = this.table.tBodies[0].rows[this.row].cells;
    const head = [names[0].textContent, cells[0].textContent].filter(Boolean).join(": ");
    const lines = this.keys.map((key, index) => {
      const line = element("div", "", key.className), value = cells[index + 1].textContent;
      line.append(element("i", ""), element("span", key.textContent, "name"), element("span", value || "no value", "value"));
      return line;
    });
    return [element("b", head), ...lines, element("small", this.plot.dataset.label)];
  }

  cell() {
    const cells = this.table.tBodies[0].rows[this.row].cells, names = this.table.tHead.rows[0].cells;
    const [rows, columns] = [this.plot.dataset.rowLabel, this.plot.dataset.columnLabel];
    const value = cells[this.column + 1].textContent || "not measured";
    const where = `${rows} ${cells[0].textContent}, ${columns} ${names[this.column + 1].textContent}`;
    return [element("b", value), element("div", where), element("small", this.plot.dataset.label)];
  }

  hide() {
    if (active !== this) return; // a finger has moved on to another plot
    active = null;
    this.cursor.hidden = tip.hidden = true;
  }
}

document.querySelectorAll(".plot").forEach((plot) => new Plot(plot));
addEventListener("scroll", () => active?.hide(), { passive: true });

const dark = matchMedia("(prefers-color-scheme: dark)"), theme = document.getElementById("theme");
const isDark = () => (document.documentElement.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
const label = () => (theme.textContent = isDark() ? "Light" : "Dark");
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  label();
});
dark.addEventListener("change", label);
label();
theme.hidden = false;
