// Curves as SVG. A view is {x: [from, to], y: [from, to]} in the coordinates of the axes: logarithms where an axis is so.

const MARGIN = { left: 62, right: 14, top: 12, bottom: 44 };
const MOST_COLOURS = 10;
const FEW_POINTS = 40; // a curve with so few points shows them

class Plot {
  static count = 0;

  constructor(figure) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    this.data = data;
    this.clip = `clip-${Plot.count++}`;
    this.forward = { x: (v) => (data.logX ? Math.log10(v) : v), y: (v) => (data.logY ? Math.log10(v) : v) };
    this.curves = data.series.map((series, i) => this.prepared(series, i));
    this.pointers = new Map();
    this.build(figure);
    this.reset();
    new ResizeObserver(() => this.draw()).observe(this.frame);
    this.listen();
  }

  /** Points in axis coordinates; null where a point cannot be drawn. */
  prepared(series, i) {
    const place = (axis, values) =>
      values && values.map((v) => (v === null || !Number.isFinite(this.forward[axis](v)) ? null : this.forward[axis](v)));
    const colour = `curve-${i % MOST_COLOURS}${series.dashed || i >= MOST_COLOURS ? " dashed" : ""}`;
    const [x, y, low, high] = [["x", series.x], ["y", series.y], ["y", series.low], ["y", series.high]].map((a) => place(...a));
    return { series, colour, x, y, low, high, visible: true };
  }

  build(figure) {
    const note = figure.querySelector("figcaption");
    const names = this.data.series.map((series) => series.name).join(", ");
    this.frame = html(figure, "div", { class: "frame" });
    this.svg = svg(this.frame, "svg", { tabindex: 0, role: "group", "aria-roledescription": "interactive plot" });
    this.svg.setAttribute("aria-label", `${this.data.title}: ${names}. Arrow keys read values, plus and minus zoom, 0 resets.`);
    this.readout = html(figure, "output", { class: "readout" });
    const legend = html(figure, "div", { class: "legend", role: "group", "aria-label": `Curves of ${this.data.title}` });
    for (const curve of this.curves) {
      curve.button = html(legend, "button", { type: "button", "aria-pressed": "true", class: curve.colour });
      html(curve.button, "span", { class: "swatch", "aria-hidden": "true" });
      html(curve.button, "span", { class: "name" }, curve.series.name);
      curve.value = html(curve.button, "span", { class: "value" });
      curve.button.addEventListener("click", () => this.toggle(curve));
    }
    const tools = html(figure, "div", { class: "tools" });
    for (const [text, label, action] of [
      ["+", "Zoom in", () => this.zoom(0.6)],
      ["−", "Zoom out", () => this.zoom(1 / 0.6)],
      ["Reset", "Reset the zoom", () => this.reset()],
    ]) {
      html(tools, "button", { type: "button", "aria-label": label }, text).addEventListener("click", action);
    }
    html(tools, "span", { class: "hint" }, "drag to zoom; click, then wheel; pinch on a screen");
    if (note) figure.append(note);
  }

  /** The smallest view with all visible curves, and a margin. */
  extent() {
    const range = (lists) => {
      let [from, to] = [Infinity, -Infinity];
      for (const list of lists) {
        for (const v of list ?? []) {
          if (v !== null) [from, to] = [Math.min(from, v), Math.max(to, v)];
        }
      }
      if (from > to) return [0, 1];
      const margin = 0.04 * (to - from) || 0.5 * (Math.abs(from) || 1);
      return [from - margin, to + margin];
    };
    const seen = this.curves.filter((curve) => curve.visible);
    return { x: range(seen.map((c) => c.x)), y: range(seen.flatMap((c) => [c.y, c.low, c.high])) };
  }

  reset() {
    this.view = this.extent();
    this.zoomed = false;
    this.draw();
  }

  toggle(curve) {
    curve.visible = !curve.visible;
    curve.button.setAttribute("aria-pressed", String(curve.visible));
    if (this.zoomed) this.draw();
    else this.reset();
  }

  /** Scale the view about a point given in pixels; the middle unless told. */
  zoom(factor, px = null, py = null) {
    const about = { x: this.at("x", px ?? this.middle("x")), y: this.at("y", py ?? this.middle("y")) };
    const scaled = (axis) => this.view[axis].map((end) => about[axis] + (end - about[axis]) * factor);
    this.look({ x: scaled("x"), y: scaled("y") });
  }

  /** Change the view, unless it would be too small to tell numbers apart. */
  look(view) {
    for (const [from, to] of [view.x, view.y]) {
      if (!(to - from > 1e-9 * Math.max(Math.abs(from), Math.abs(to), 1e-6)) || to - from > 1e12) return;
    }
    this.view = view;
    this.zoomed = true;
    this.draw();
  }

  middle(axis) {
    const [start, end] = this.pixels(axis);
    return (start + end) / 2;
  }

  /** Where an axis starts and ends, in pixels. */
  pixels(axis) {
    return axis === "x" ? [MARGIN.left, this.width - MARGIN.right] : [this.height - MARGIN.bottom, MARGIN.top];
  }

  /** From axis coordinates to pixels, and back. */
  place(axis, value) {
    const [[from, to], [start, end]] = [this.view[axis], this.pixels(axis)];
    return start + ((value - from) / (to - from)) * (end - start);
  }

  at(axis, pixel) {
    const [[from, to], [start, end]] = [this.view[axis], this.pixels(axis)];
    return from + ((pixel - start) / (end - start)) * (to - from);
  }

  draw() {
    this.width = Math.max(this.frame.clientWidth, 200);
    this.height = Math.min(420, Math.max(240, 0.6 * this.width));
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.replaceChildren();
    this.drawAxes();
    const inside = svg(this.svg, "g", { "clip-path": `url(#${this.clip})` });
    for (const curve of this.curves) if (curve.visible) this.drawCurve(inside, curve);
    this.overlay = svg(this.svg, "g", { class: "overlay" });
    this.quiet();
  }

  drawAxes() {
    const [[left, right], [bottom, top]] = [this.pixels("x"), this.pixels("y")];
    const box = { x: left, y: top, width: right - left, height: bottom - top };
    svg(svg(svg(this.svg, "defs"), "clipPath", { id: this.clip }), "rect", box);
    svg(this.svg, "rect", { ...box, class: "paper" });
    for (const [position, text] of ticksOf(this.view.x, this.data.logX, Math.max(3, this.width / 110))) {
      const x = this.place("x", position);
      svg(this.svg, "path", { d: `M${x} ${top}V${bottom}`, class: "grid" });
      svg(this.svg, "text", { x, y: bottom + 16, class: "tick x" }, text);
    }
    for (const [position, text] of ticksOf(this.view.y, this.data.logY, 6)) {
      const y = this.place("y", position);
      svg(this.svg, "path", { d: `M${left} ${y}H${right}`, class: "grid" });
      svg(this.svg, "text", { x: left - 6, y: y + 4, class: "tick y" }, text);
    }
    svg(this.svg, "text", { x: (left + right) / 2, y: this.height - 8, class: "label" }, this.data.xLabel);
    const middle = (top + bottom) / 2;
    svg(this.svg, "text", { x: 13, y: middle, class: "label", transform: `rotate(-90 13 ${middle})` }, this.data.yLabel);
  }

  drawCurve(parent, curve) {
    const group = svg(parent, "g", { class: curve.colour });
    const point = (x, y) => `${this.place("x", x).toFixed(1)} ${this.place("y", y).toFixed(1)}`;
    for (const piece of this.pieces(curve, curve.low && [curve.low, curve.high])) {
      const outline = [...piece.map((i) => point(curve.x[i], curve.low[i])), ...piece.reverse().map((i) => point(curve.x[i], curve.high[i]))];
      svg(group, "path", { d: `M${outline.join("L")}Z`, class: "band" });
    }
    for (const piece of this.pieces(curve, [curve.y])) {
      svg(group, "path", { d: `M${piece.map((i) => point(curve.x[i], curve.y[i])).join("L")}`, class: "line" });
      if (piece.length > 1 && curve.x.length > FEW_POINTS) continue;
      for (const i of piece) svg(group, "circle", { cx: this.place("x", curve.x[i]), cy: this.place("y", curve.y[i]), r: 2.5 });
    }
  }

  /** Runs of indices without a gap, where x and all the lists have a value. */
  pieces(curve, lists) {
    if (!lists) return [];
    const found = [];
    let open = false;
    curve.x.forEach((x, i) => {
      const known = x !== null && lists.every((list) => list[i] !== null);
      if (known && !open) found.push([]);
      if (known) found.at(-1).push(i);
      open = known;
    });
    return found;
  }

  /** Show the values at the point nearest to x (axis coordinates). */
  read(x) {
    const nearest = (curve, target) => {
      let best = null;
      curve.x.forEach((value, i) => {
        if (value === null || curve.y[i] === null) return;
        if (best === null || Math.abs(value - target) < Math.abs(curve.x[best] - target)) best = i;
      });
      return best;
    };
    const found = this.curves.filter((curve) => curve.visible).map((curve) => ({ curve, i: nearest(curve, x) }));
    const known = found.filter(({ i }) => i !== null);
    if (!known.length) return;
    const distance = ({ curve, i }) => Math.abs(curve.x[i] - x);
    const first = known.reduce((a, b) => (distance(b) < distance(a) ? b : a));
    this.reading = first.curve.x[first.i];
    this.quiet();
    const [bottom, top] = this.pixels("y");
    svg(this.overlay, "path", { d: `M${this.place("x", this.reading)} ${top}V${bottom}`, class: "cross" });
    for (const { curve } of known) {
      const i = nearest(curve, this.reading);
      const [px, py] = [this.place("x", curve.x[i]), this.place("y", curve.y[i])];
      curve.value.textContent = show(curve.series.y[i]);
      if (py >= top && py <= bottom) svg(this.overlay, "circle", { cx: px, cy: py, r: 4.5, class: curve.colour });
    }
    this.readout.textContent = `${this.data.xLabel || "x"} = ${show(first.curve.series.x[first.i])}`;
  }

  /** No read-out. */
  quiet() {
    this.overlay.replaceChildren();
    this.readout.textContent = "";
    for (const curve of this.curves) curve.value.textContent = "";
  }

  /** Read the next or previous point of the first visible curve. */
  step(direction) {
    const xs = this.curves.find((curve) => curve.visible)?.x.filter((x) => x !== null && x >= this.view.x[0] && x <= this.view.x[1]);
    if (!xs?.length) return;
    xs.sort((a, b) => a - b);
    const now = this.reading === undefined ? -1 : xs.findLastIndex((x) => x <= this.reading + 1e-12);
    const next = this.reading === undefined && direction < 0 ? xs.length - 1 : now + direction;
    this.read(xs[Math.min(xs.length - 1, Math.max(0, next))]);
  }

  listen() {
    const position = (event) => {
      const box = this.svg.getBoundingClientRect();
      return { x: ((event.clientX - box.left) / box.width) * this.width, y: ((event.clientY - box.top) / box.height) * this.height };
    };
    const on = (name, action, options) => this.svg.addEventListener(name, (event) => action(event, position(event)), options);
    on("pointerdown", (event, p) => this.press(event, p));
    on("pointermove", (event, p) => this.drag(event, p));
    on("pointerup", (event, p) => this.release(event, p));
    on("pointercancel", (event) => this.forget(event));
    on("pointerleave", () => this.pointers.size || this.quiet());
    on("dblclick", () => this.reset());
    on("wheel", (event, p) => {
      if (!event.ctrlKey && document.activeElement !== this.svg) return; // else a reader could not scroll past
      event.preventDefault();
      this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), p.x, p.y);
    }, { passive: false });
    const keys = {
      ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1),
      "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6),
      0: () => this.reset(), Escape: () => this.reset(),
    };
    on("keydown", (event) => {
      if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      keys[event.key]();
    });
  }

  press(event, p) {
    if (event.button > 0) return;
    this.pointers.set(event.pointerId, { start: p, now: p });
    this.svg.setPointerCapture(event.pointerId);
    if (this.pointers.size === 2) this.pinch = { view: this.view, points: [...this.pointers.values()].map(({ now }) => now) };
    else if (event.pointerType !== "mouse") this.read(this.at("x", p.x));
  }

  drag(event, p) {
    const pointer = this.pointers.get(event.pointerId);
    if (pointer) pointer.now = p;
    if (this.pointers.size === 2 && this.pinch) this.pinched();
    else if (pointer && event.pointerType === "mouse") this.band(pointer);
    else if (this.pointers.size < 2) this.read(this.at("x", p.x));
  }

  /** Draw the rectangle that a drag would zoom to. */
  band({ start, now }) {
    this.quiet();
    const [x, y] = [Math.min(start.x, now.x), Math.min(start.y, now.y)];
    svg(this.overlay, "rect", { x, y, width: Math.abs(now.x - start.x), height: Math.abs(now.y - start.y), class: "rubber" });
  }

  release(event, p) {
    const pointer = this.pointers.get(event.pointerId);
    this.forget(event);
    if (!pointer || event.pointerType !== "mouse") return;
    const span = (axis) => {
      if (Math.abs(p[axis] - pointer.start[axis]) < 8) return this.view[axis]; // a flat rectangle zooms the other axis
      return [this.at(axis, p[axis]), this.at(axis, pointer.start[axis])].sort((a, b) => a - b);
    };
    const view = { x: span("x"), y: span("y") };
    if (view.x !== this.view.x || view.y !== this.view.y) this.look(view);
  }

  forget(event) {
    this.pointers.delete(event.pointerId);
    if (this.pointers.size < 2) this.pinch = null;
  }

  /** Two fingers: what was under their middle stays there, and the scale follows their distance. */
  pinched() {
    const now = [...this.pointers.values()].map((pointer) => pointer.now);
    const apart = ([a, b]) => Math.max(20, Math.hypot(a.x - b.x, a.y - b.y));
    const centre = ([a, b]) => ({ x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 });
    const [before, after, factor] = [centre(this.pinch.points), centre(now), apart(this.pinch.points) / apart(now)];
    this.view = this.pinch.view;
    const moved = (axis) => {
      const about = this.at(axis, before[axis]);
      const shift = this.at(axis, before[axis]) - this.at(axis, after[axis]);
      return this.view[axis].map((end) => about + (end - about) * factor + shift * factor);
    };
    this.look({ x: moved("x"), y: moved("y") });
  }
}

for (const figure of document.querySelectorAll("figure.curves")) new Plot(figure);
