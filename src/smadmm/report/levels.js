// Black and white of the images of a figure: two range inputs that set CSS filters, so the images stay those of the file.
for (const figure of document.querySelectorAll("figure.compare[data-low]")) {
  const STEPS = 500;
  const [low, high, black, white] = ["low", "high", "black", "white"].map((name) => Number(figure.dataset[name]));
  const digits = Math.min(Math.max(0, 2 - Math.floor(Math.log10(high - low))), 100);
  const images = figure.querySelectorAll(".images img");
  const title = figure.querySelector("h3").textContent;
  const row = document.createElement("div");
  row.className = "levels";

  function control(name) {
    const label = document.createElement("label");
    const slider = document.createElement("input");
    const output = document.createElement("output");
    Object.assign(slider, { type: "range", min: 0, max: STEPS });
    slider.setAttribute("aria-label", `${title}: ${name}`);
    label.append(name, slider, output);
    row.append(label);
    return slider;
  }

  const [dark, bright] = [control("black"), control("white")];
  const reset = document.createElement("button");
  reset.type = "button";
  reset.textContent = "Reset black and white";
  const unit = document.createElement("span");
  unit.className = "hint";
  unit.textContent = figure.dataset.unit && `in ${figure.dataset.unit}`;
  const line = document.createElement("div");
  line.className = "tools";
  line.append(reset, unit);
  row.append(line);

  function set(from, to) {
    [[dark, from], [bright, to]].forEach(([slider, value]) => {
      slider.value = value;
      const shown = low + ((high - low) * slider.value) / STEPS;
      slider.nextSibling.textContent = Number(shown.toFixed(digits));
      slider.setAttribute("aria-valuetext", `${slider.nextSibling.textContent} ${figure.dataset.unit}`);
    });
    // brightness multiplies, contrast stretches about 1/2: together v becomes (v - k) / (w - k)
    const [k, w] = [dark.value / STEPS, bright.value / STEPS];
    images.forEach((image) => {
      image.style.filter = `brightness(${1 / (w + k)}) contrast(${(w + k) / (w - k)})`;
    });
  }

  const at = (value) => Math.round((STEPS * (value - low)) / (high - low));
  const begin = () => set(Math.min(at(black), STEPS - 1), Math.max(at(white), at(black) + 1));
  dark.addEventListener("input", () => {
    const from = Math.min(Number(dark.value), STEPS - 1);
    set(from, Math.max(Number(bright.value), from + 1));
  });
  bright.addEventListener("input", () => {
    const to = Math.max(Number(bright.value), 1);
    set(Math.min(Number(dark.value), to - 1), to);
  });
  reset.addEventListener("click", begin);
  figure.querySelector(".images").after(row);
  begin();
}
