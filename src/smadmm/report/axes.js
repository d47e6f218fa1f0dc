"use strict";
// What the curves are drawn with: elements, numbers as text, ticks.

/** A new SVG element inside parent. */
function svg(parent, name, attributes = {}, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  parent.append(node);
  return node;
}

/** A new HTML element inside parent. */
function html(parent, name, attributes = {}, text = "") {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  parent.append(node);
  return node;
}

/** A number with four digits, as a person writes it. */
function show(value, digits = 4) {
  if (value === null) return "-";
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e6)) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    return `${Number(mantissa)}e${Number(exponent)}`;
  }
  return String(Number(value.toPrecision(Math.max(digits, 1))));
}

/** Round numbers from a to b, about as many as wanted. */
function roundTicks(a, b, wanted) {
  const rough = (b - a) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const ticks = [];
  for (let i = Math.ceil(a / step); i * step <= b; i++) ticks.push(i * step);
  return ticks;
}

/** Ticks of an axis as [position, text]. */
function ticksOf([from, to], log, wanted) {
  if (!log) {
    const digits = Math.max(4, Math.ceil(Math.log10(Math.max(Math.abs(from), Math.abs(to)) / (to - from) || 1)) + 2);
    return roundTicks(from, to, wanted).map((value) => [value, show(value, digits)]);
  }
  if (to - from < 0.7) {
    const values = roundTicks(10 ** from, 10 ** to, wanted).filter((value) => value > 0);
    return values.map((value) => [Math.log10(value), show(value, 6)]);
  }
  const step = Math.max(1, Math.ceil((to - from) / wanted));
  const ticks = [];
  for (let power = Math.floor(from / step) * step; power <= to; power += step) {
    for (const factor of to - from < 2.5 ? [1, 2, 5] : [1]) {
      const position = power + Math.log10(factor);
      if (position >= from && position <= to) ticks.push([position, show(factor * 10 ** power, 2)]);
    }
  }
  return ticks;
}
