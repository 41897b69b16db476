for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const value = (row, k) => row.cells[k].dataset.value ?? row.cells[k].textContent;
  table.querySelectorAll("th").forEach((head, k) => head.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("th").forEach((h) => h.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const sign = down ? -1 : 1;
    [...body.rows].sort((a, b) => {
      const [x, y] = [value(a, k), value(b, k)];
      const [p, q] = [parseFloat(x), parseFloat(y)];
      if (head.dataset.kind !== "number") return sign * x.localeCompare(y);
      if (isNaN(p) || isNaN(q)) return isNaN(p) - isNaN(q);
      return sign * (p - q);
    }).forEach((row) => body.append(row));
  }));
}
for (const box of document.querySelectorAll("input[data-for]")) {
  const body = document.getElementById(box.dataset.for).tBodies[0];
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/);
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
}
