// Sorts the table of queues by the column whose heading is clicked, and hides the rows that do not match the filter.
// Without this script the table is complete and in the order of the report.
"use strict";
(() => {
  const table = document.getElementById("queues");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const filter = document.getElementById("filter");
  const found = document.getElementById("found");
  const shown = document.getElementById("shown");

  const values = (column) => rows.map((row) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent.trim();
  });
  const compare = (left, right) => (typeof left === "number" && typeof right === "number"
    ? left - right
    : String(left).localeCompare(String(right), "en", { numeric: true }));

  Array.from(table.tHead.rows[0].cells).forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const before = heading.getAttribute("aria-sort");
      const first = heading.classList.contains("number") ? "descending" : "ascending";
      const order = before === null ? first : before === "ascending" ? "descending" : "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", order);
      const keys = values(column);
      const places = rows.map((_, index) => index);
      const sign = order === "ascending" ? 1 : -1;
      places.sort((left, right) => sign * compare(keys[left], keys[right]) || left - right);
      body.append(...places.map((index) => rows[index]));
    });
  });

  const apply = () => {
    const wanted = filter.value.toLowerCase().split(" ").filter(Boolean);
    let visible = 0;
    rows.forEach((row, index) => {
      const fits = wanted.every((word) => texts[index].includes(word))
        && (!found.checked || row.dataset.severity !== "0");
      row.hidden = !fits;
      visible += fits ? 1 : 0;
    });
    const all = rows.length === 1 ? "1 queue" : `${rows.length.toLocaleString("en")} queues`;
    shown.textContent = `${visible.toLocaleString("en")} of ${all}`;
  };
  filter.addEventListener("input", apply);
  found.addEventListener("change", apply);
  document.getElementById("tools").hidden = false;
  apply();
})();
