// Images under a slider. The slider is a range input laid over the images, so mouse, touch and keyboard work by themselves.
for (const figure of document.querySelectorAll("figure.compare")) {
  const stage = figure.querySelector(".images");
  const slider = figure.querySelector("input");
  const images = [...stage.querySelectorAll("img")];
  const labels = images.map((image) => image.dataset.label);
  const title = figure.querySelector("h3").textContent;
  const badges = ["left", "right"].map((side) => {
    const badge = document.createElement("span");
    badge.className = `badge ${side}`;
    badge.setAttribute("aria-hidden", "true");
    return badge;
  });
  const divider = document.createElement("div");
  divider.className = "divider";
  stage.append(...badges, divider, slider);

  function choose(left, right) {
    images.forEach((image, i) => {
      image.className = i === right ? "right" : i === left ? "left" : "unseen";
    });
    [left, right].forEach((index, side) => {
      badges[side].textContent = labels[index];
    });
    slider.setAttribute("aria-label", `${title}: ${labels[left]} left of the divider, ${labels[right]} right`);
  }

  function move() {
    stage.style.setProperty("--at", `${slider.value}%`);
    slider.setAttribute("aria-valuetext", `divider at ${Math.round(slider.value)} percent`);
  }

  function menu(side, chosen) {
    const select = document.createElement("select");
    select.setAttribute("aria-label", `${title}: image on the ${side}`);
    labels.forEach((label, i) => select.append(new Option(label, i, i === chosen, i === chosen)));
    return select;
  }

  if (images.length > 2) {
    const menus = [menu("left", 0), menu("right", 1)];
    const row = document.createElement("div");
    row.className = "menus";
    row.append(...menus);
    stage.before(row);
    row.addEventListener("change", () => choose(Number(menus[0].value), Number(menus[1].value)));
  }
  slider.addEventListener("input", move);
  figure.classList.add("ready");
  choose(0, 1);
  move();
}
