"use strict";
// The page is whole without this. It adds one tab stop a map, arrow keys, and a tap in a dialog.

const dialog = document.createElement("dialog");
dialog.setAttribute("aria-labelledby", "opened");
document.body.append(dialog);
dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());

function open(link) {
  const card = document.getElementById(link.hash.slice(1));
  if (!card) return;
  const title = document.createElement("h2");
  title.id = "opened";
  title.append(card.parentElement.querySelector("summary code").cloneNode(true));
  const button = document.createElement("button");
  button.textContent = "Close";
  button.addEventListener("click", () => dialog.close());
  const top = document.createElement("div");
  top.className = "top";
  top.append(title, button);
  const copy = card.cloneNode(true);
  copy.removeAttribute("id");
  dialog.replaceChildren(top, copy);
  dialog.showModal();
}

function grid(frame) {
  // Cells by row, as a sparse matrix: an arrow goes to the nearest cell that is there.
  const rows = [...frame.querySelectorAll("tbody tr")].map((row) =>
    [...row.querySelectorAll("td")].map((cell) => cell.querySelector("a")));
  const links = rows.flat().filter(Boolean);
  if (!links.length) return;
  const wrong = frame.querySelector("td.wrong a");
  links.forEach((link) => (link.tabIndex = -1));
  (wrong || links[0]).tabIndex = 0;
  frame.removeAttribute("tabindex");

  const place = (link) => {
    const row = rows.findIndex((cells) => cells.includes(link));
    return [row, rows[row].indexOf(link)];
  };
  const walk = (row, column, down, right) => {
    for (;;) {
      row += down;
      column += right;
      if (!rows[row] || column < 0 || column >= rows[row].length) return null;
      if (rows[row][column]) return rows[row][column];
    }
  };
  const moves = {
    ArrowUp: (row, column) => walk(row, column, -1, 0),
    ArrowDown: (row, column) => walk(row, column, 1, 0),
    ArrowLeft: (row, column) => walk(row, column, 0, -1),
    ArrowRight: (row, column) => walk(row, column, 0, 1),
    Home: (row) => walk(row, -1, 0, 1),
    End: (row) => walk(row, rows[row].length, 0, -1),
  };
  frame.addEventListener("keydown", (event) => {
    const move = moves[event.key];
    const link = event.target.closest("a");
    if (!move || !link || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const next = move(...place(link));
    if (next) next.focus();
  });
  frame.addEventListener("focusin", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    links.forEach((one) => (one.tabIndex = -1));
    link.tabIndex = 0;
    tell(frame, link);
  });
  frame.addEventListener("mouseover", (event) => {
    const link = event.target.closest("a");
    if (link) tell(frame, link);
  });
  frame.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    link.focus();
    open(link);
  });
}

function tell(frame, link) {
  frame.closest(".heat").querySelector(".readout").textContent = link.getAttribute("aria-label");
}

const maps = document.querySelector("#maps h2");
if (maps) {
  const keys = document.createElement("p");
  keys.className = "note keys";
  keys.textContent = "Arrow keys walk through a map, Enter opens a tap, Escape closes it.";
  maps.after(keys);
}

for (const heat of document.querySelectorAll(".heat")) {
  const readout = document.createElement("p");
  readout.className = "readout note";
  readout.textContent = "Point at a cell to read it.";
  readout.setAttribute("aria-hidden", "true");
  heat.querySelector(".legend").before(readout);
  heat.querySelectorAll(".frame").forEach(grid);
}
