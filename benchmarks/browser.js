// What browser.py asks of a page of JupyterLab, or of the site.

// Run all cells; answer with what went wrong, or "".
function run_all(done) {
  window.jupyterapp.commands.execute('notebook:run-all-cells').then(() => done(''), e => done(`${e}`))
}

function shut_down(done) {
  window.jupyterapp.commands.execute('kernelmenu:shutdown').then(done)
}

function kernel() {
  return window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status
}

// Errors of cells, and what they wrote to stderr. That a trial is no better than the majority-class
// baseline is an answer, which the library gives as a warning.
function trouble() {
  const cells = [...window.jupyterapp.shell.currentWidget.content.widgets];
  return cells.flatMap(cell => (cell.model.outputs ? cell.model.outputs.toJSON() : [])
    .filter(o => o.output_type === 'error' || o.name === 'stderr')
    .filter(o => !String(o.text).includes('BelowBaseline'))
    .map(o => o.evalue || String(o.text).slice(0, 200)));
}

// What a control changes: a picture, or the line that says what the next run is made with.
function shown() {
  const pictures = '.jp-Notebook .widget-image, .jp-Notebook .jupyter-widgets img';
  const lines = '.jp-Notebook .widget-html-content';
  return [...document.querySelectorAll(pictures)].map(i => i.src).join() +
    [...document.querySelectorAll(lines)].map(i => i.innerText).join()
}

// Where an explorer says what went wrong.
function complaints() {
  return [...document.querySelectorAll('.jp-Notebook .widget-html b')]
    .map(b => b.parentElement.innerText)
}

function frames() {
  return [...document.querySelectorAll('[data-frames] img')].map(i => i.src)
}
