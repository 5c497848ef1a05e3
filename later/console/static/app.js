// The start of the console.

import { html, render } from "./lib/html.js";
import { App } from "./lib/shell.js";

render(html`<${App} />`, document.getElementById("app"));
