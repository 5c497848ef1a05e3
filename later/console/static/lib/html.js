// The one import of the framework: Preact, its hooks, and htm for templates.

import { h, render } from "../vendor/preact.js";
import {
  useCallback, useEffect, useErrorBoundary, useId, useLayoutEffect, useMemo, useRef, useState,
} from "../vendor/hooks.js";
import htm from "../vendor/htm.js";

const html = htm.bind(h);

export {
  html, render,
  useCallback, useEffect, useErrorBoundary, useId, useLayoutEffect, useMemo, useRef, useState,
};
