// Elements of the page. Everything is written as text, never as HTML, and unchanged elements are not touched.

const at = (id) => document.getElementById(id);

function make(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

function drawn(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A cell is text, or { badge, mark, text, link }. Unchanged cells are not touched, since they may be selected, or read aloud. */
function put(element, cell) {
  const { badge, mark, text, link } = typeof cell === "object" ? cell : { text: cell };
  const content = `${mark}|${badge}|${text}|${link}`;
  if (element.content === content) return;
  element.content = content;
  const inside = [];
  if (badge) inside.push(make("span", badge, `badge ${mark}`));
  if (link) inside.push(Object.assign(make("a", text), { href: link }));
  else if (text) inside.push(document.createTextNode(badge ? ` ${text}` : text));
  element.replaceChildren(...inside);
  element.classList.toggle("unknown", text === UNKNOWN && !badge);
}

/** A description list of an object; nested objects become lines of their own, addresses become links. */
function describe(element, values) {
  const content = JSON.stringify(values);
  if (element.content === content) return;
  element.content = content;
  element.replaceChildren(...listed(values).flatMap(([name, value]) => {
    const detail = make("dd");
    if (/^https?:/.test(value)) detail.appendChild(make("a", value)).href = value;
    else detail.textContent = value;
    return [make("dt", name), detail];
  }));
}

function listed(values, before = "") {
  return Object.entries(values).flatMap(([name, value]) => {
    const whole = before + name.replaceAll("_", " ");
    if (value === null) return [];
    return typeof value === "object" ? listed(value, `${whole}: `) : [[whole, String(value)]];
  });
}

/** Rows are { key, cells }, kept by their keys. The first cell is the row's header. */
function fill(table, rows, nothing) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const before = table.kept ?? new Map();
  table.kept = new Map();
  for (const { key, cells } of rows) {
    const row = before.get(key) ?? heads.reduce((made, head, place) => {
      const cell = made.appendChild(make(place ? "td" : "th", undefined, head.className));
      if (place) cell.dataset.label = head.textContent;
      else cell.scope = "row";
      return made;
    }, make("tr"));
    cells.forEach((cell, place) => put(row.cells[place], cell));
    table.kept.set(key, row);
  }
  const wanted = [...table.kept.values()];
  if (!wanted.length) {
    if (body.rows.length === 1 && body.rows[0].content === nothing) return;
    const row = make("tr");
    const cell = row.appendChild(make("td", nothing, "none"));
    cell.colSpan = heads.length;
    row.content = nothing;
    wanted.push(row);
  }
  if (wanted.length !== body.rows.length || wanted.some((row, place) => row !== body.rows[place])) body.replaceChildren(...wanted);
}
