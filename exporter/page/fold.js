// A part of the page that a button opens and Escape closes.

import { shown } from "./dom.js";

// A Fold opens more, a part of node, by a button. make returns its contents,
// which have close.
export class Fold {
  contents = null; // while it is open

  constructor(node, button, more, make) {
    Object.assign(this, { node, button, more, make });
    button.addEventListener("click", () => this.toggle());
    node.addEventListener("keydown", (e) => {
      if (e.key !== "Escape" || !this.contents) return;
      this.toggle();
      button.focus();
      e.stopPropagation();
    });
  }

  toggle() {
    const open = !this.contents;
    this.button.setAttribute("aria-expanded", String(open));
    this.node.classList.toggle("open", open);
    shown(this.more, open);
    if (open) {
      this.contents = this.make(this.more);
    } else {
      this.close();
      this.more.replaceChildren();
    }
  }

  // close ends the contents, as when the node is removed.
  close() {
    this.contents?.close();
    this.contents = null;
  }
}
