// `scalestudy report --png` opens the page with #pictures in a browser without a window, and reads what is written here:
// every figure as a PNG, by name.
if (location.hash === "#pictures")
  (async () => {
    const found = {};
    for (const box of document.querySelectorAll("figure:not([data-empty])"))
      found[box.dataset.figure] = (await drawing.picture(box)).toDataURL().split(",")[1];
    document.body.replaceChildren(drawing.element("pre", { id: "pictures" }, JSON.stringify(found)));
  })();
