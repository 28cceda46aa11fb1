// Small tools to build the document. Text only ever becomes text: nothing here
// produces markup.

// el makes an element. Attributes that are false or undefined are left out.
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

// text sets the text of a node if it differs.
export function text(node, value) {
  if (node.said === value) return;
  node.said = value;
  node.textContent = value;
}

// titled sets the text of a node that may be too narrow for it: the title has
// all of it.
export function titled(node, value) {
  text(node, value);
  attribute(node, "title", value.trim() || null);
}

// attribute sets an attribute if it differs; null removes it.
export function attribute(node, name, value) {
  if (value === null) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== value) {
    node.setAttribute(name, value);
  }
}

// shown shows or hides a node.
export function shown(node, is) {
  if (node.hidden === is) node.hidden = !is;
}

// style sets a custom property if it differs.
export function style(node, name, value) {
  if (node.style.getPropertyValue(name) !== value) node.style.setProperty(name, value);
}

// A List keeps one node for each key. Nodes that stay are changed in place, so
// that neither focus nor selection is lost.
export class List {
  #nodes = new Map();

  constructor(parent, { key, make, update, drop }) {
    Object.assign(this, { parent, key, make, update, drop });
  }

  // show makes the children the items, in their order.
  show(items) {
    const gone = new Map(this.#nodes);
    let before = null;
    for (const item of items) {
      const key = this.key(item);
      if (!gone.has(key) && this.#nodes.has(key)) continue; // the same key twice
      let node = this.#nodes.get(key);
      if (!node) {
        node = this.make(item);
        this.#nodes.set(key, node);
      }
      gone.delete(key);
      this.update(node, item);
      this.#place(node, before);
      before = node;
    }
    for (const [key, node] of gone) {
      this.drop?.(node);
      node.remove();
      this.#nodes.delete(key);
    }
  }

  // place moves node after before. A moved node loses the focus, so a focused
  // node stays and the others move around it.
  #place(node, before) {
    const next = () => (before ? before.nextSibling : this.parent.firstChild);
    if (next() === node) return;
    if (node.isConnected && node.contains(document.activeElement)) {
      while (next() !== node) this.parent.append(next());
    } else {
      this.parent.insertBefore(node, next());
    }
  }
}
