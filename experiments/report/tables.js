"use strict";
// Makes tables sortable. The page needs none of this to be read: the buttons are put in here.
// A button sorts upwards, then downwards, then as the study ran; numbers as numbers, what is not there last.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = Array.from(table.tHead.rows[0].cells),
    body = table.tBodies[0],
    first = Array.from(body.rows);
  const text = (row, column) => (row.cells[column].dataset.sort || row.cells[column].textContent).trim();
  const number = (words) => Number(words.replace(/[,†\s]/g, "") || "–");
  const sort = (column, direction) => {
    const keys = first.map((row, place) => ({
      row,
      place,
      text: text(row, column),
      number: number(text(row, column)),
    }));
    const numeric = keys.every((key) => key.text === "–" || key.text === "" || !Number.isNaN(key.number));
    const empty = (key) => (numeric ? Number.isNaN(key.number) : key.text === "–" || key.text === "");
    keys.sort(
      (a, b) =>
        empty(a) - empty(b) ||
        (empty(a)
          ? 0
          : direction * (numeric ? a.number - b.number : a.text.localeCompare(b.text, "en", { numeric: true }))) ||
        a.place - b.place,
    );
    body.append(...(direction ? keys.map((key) => key.row) : first));
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const now = { none: "ascending", ascending: "descending", descending: "none" }[before];
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", now);
      sort(column, { ascending: 1, descending: -1, none: 0 }[now]);
    });
  });
}
for (const [event, open] of [
  ["beforeprint", true],
  ["afterprint", false],
]) {
  addEventListener(event, () => {
    for (const details of document.querySelectorAll(open ? "details.prints:not([open])" : "details[data-opened]")) {
      details.open = open;
      details.toggleAttribute("data-opened", open);
    }
  });
}
// The page of a study that runs comes again every 20 seconds; every two minutes, where it is older than that.
const live = document.getElementById("live");
if (live) {
  const STALE_SECONDS = 120,
    AGAIN_SECONDS = 20;
  const written = Number(live.dataset.written);
  const stale = Date.now() / 1000 - written >= STALE_SECONDS;
  if (stale) {
    const at = new Date(written * 1000).toLocaleTimeString();
    document.getElementById("stale").textContent = `Last written at ${at}.`;
  }
  setTimeout(() => location.reload(), (stale ? STALE_SECONDS : AGAIN_SECONDS) * 1000);
}
