for (const table of document.querySelectorAll("table[id]")) {
  const rows = [...table.tBodies[0].rows], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, k) => {
    const text = (row) => row.cells[k].textContent;
    const numbers = rows.every((row) => !isNaN(text(row)));
    if (numbers) rows.forEach((row) => row.cells[k].classList.add("number"));
    head.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const less = (x, y) => numbers ? !x - !y || sign * (x - y) : sign * x.localeCompare(y);
      rows.sort((a, b) => less(text(a), text(b)));
      table.tBodies[0].append(...rows);
    });
  });
}
for (const box of document.querySelectorAll("input[data-for]")) {
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/);
    for (const row of document.getElementById(box.dataset.for).tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
}
