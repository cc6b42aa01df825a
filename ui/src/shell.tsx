import { signal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { ActionDialog, mayOperate, role } from "./action.tsx";
import { duration } from "./format.ts";
import { type Connection, connection, now, readAt, refresh, useRead } from "./live.ts";
import type { Overview } from "./model.ts";
import { overview } from "./stats.ts";
import { Icon, type IconName, toasts } from "./parts.tsx";
import { address, go, hrefOf } from "./router.ts";
import { chooseTheme, chosenTheme, THEMES } from "./theme.ts";

export interface PageEntry {
  /** First part of the address. */
  page: string;
  title: string;
  /** Null: not in the navigation. */
  icon: IconName | null;
  /** Pressed after `g`. */
  key?: string;
  view: ComponentType;
}

const STALE_MS = 15_000;
const GO_MS = 1_500;
/** The overview counts every queue: pages that show only the number of its alarms read it less often. */
const OTHER_PAGE_MS = 15_000;
/** The server's title for the whole dashboard. */
const PRODUCT = document.title;
const isHelpOpen = signal(false);

export function Shell({ pages }: { pages: PageEntry[] }) {
  const { page, id } = address.value;
  const entry = pages.find((one) => one.page === page);
  const title = entry?.title ?? "Not found";
  const content = useRef<HTMLElement>(null);
  // Every page needs to know what its user may do, and shows the number of alarms.
  const reading = useRead<Overview>("api/v1/overview", page === "overview" || page === "recovery" ? 0 : OTHER_PAGE_MS);
  const { data } = reading;
  useEffect(() => {
    overview.value = reading;
    if (data === null) return;
    role.value = data.access.role;
  }, [reading]);
  useEffect(() => {
    document.title = `${id ?? title} · ${PRODUCT}`;
    document.querySelector("nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
    window.scrollTo(0, 0);
  }, [page, id]);
  useEffect(() => listenToKeys(pages), []);
  const graveAlarms = data?.alarms.filter(({ grave }) => grave).length ?? 0;
  const View = entry?.view;
  return (
    <div class="shell">
      <a
        class="skip"
        href="#content"
        onClick={(event) => {
          event.preventDefault();
          content.current?.focus();
        }}
      >
        Skip to the content
      </a>
      <aside class="side">
        <a class="brand" href={hrefOf("overview")}>
          <Logo />
          <span>{PRODUCT}</span>
        </a>
        <nav aria-label="Pages">
          {pages.map(({ page: one, title: text, icon }) =>
            icon === null ? null : (
              <a key={one} href={hrefOf(one)} aria-current={one === page ? "page" : undefined}>
                <Icon name={icon} />
                <span>{text}</span>
                {one === "overview" && graveAlarms > 0 ? (
                  <span class="count" title="Grave alarms">
                    {graveAlarms}
                    <span class="visually-hidden"> grave alarms</span>
                  </span>
                ) : null}
              </a>
            ),
          )}
        </nav>
        <div class="side-foot">
          <ConnectionState />
          <div class="themes" role="group" aria-label="Colours">
            {THEMES.map((one) => (
              <button
                type="button"
                key={one}
                class="button quiet icon-only"
                aria-pressed={chosenTheme.value === one}
                aria-label={`Colours: ${one}`}
                title={`Colours: ${one}`}
                onClick={() => chooseTheme(one)}
              >
                <Icon name={one} />
              </button>
            ))}
            <button
              type="button"
              class="button quiet icon-only"
              aria-label="Keyboard shortcuts"
              title="Keyboard shortcuts (?)"
              onClick={() => (isHelpOpen.value = true)}
            >
              <Icon name="help" />
            </button>
          </div>
        </div>
      </aside>
      <main id="content" tabIndex={-1} ref={content}>
        <StaleNote />
        {View === undefined ? <NotFound /> : <View key={`${page}/${id ?? ""}`} />}
      </main>
      <ActionDialog />
      {isHelpOpen.value ? <Help pages={pages} /> : null}
      <div class="toasts" role="status" aria-live="polite">
        {toasts.value.map(({ id: one, text, kind }) => (
          <div class={`toast ${kind}`} key={one}>
            {text}
          </div>
        ))}
      </div>
    </div>
  );
}

const CONNECTIONS: Record<Connection, { text: string; tone: string; title: string }> = {
  connecting: { text: "Connecting", tone: "grey", title: "Waits for the server's first answer." },
  live: { text: "Live", tone: "green", title: "Follows the commits of all processes." },
  paused: { text: "Paused", tone: "grey", title: "The page is hidden." },
  lost: { text: "Disconnected", tone: "red", title: "The server does not answer. The page tries again." },
  denied: { text: "No access", tone: "red", title: "The server refuses this browser's session." },
};

function ConnectionState() {
  const { text, tone, title } = CONNECTIONS[connection.value];
  return (
    <span class={`connection tone-${tone}`} title={title} role="status">
      <span class="dot" aria-hidden="true" />
      {text}
    </span>
  );
}

/** Says above every page when what it shows is old. */
function StaleNote() {
  const at = readAt.value;
  const age = at === null ? 0 : now.value - at;
  if (connection.value === "denied")
    return (
      <div class="callout tone-red" role="alert">
        <strong>The server refuses this browser's session.</strong> Sessions end with the server. Start <code>holdfast ui</code>{" "}
        again, and open the address that it prints.
      </div>
    );
  if (connection.value !== "lost" && age < STALE_MS) return null;
  return (
    <div class="callout tone-amber" role="alert">
      <strong>{connection.value === "lost" ? "Disconnected." : "Stale."}</strong>{" "}
      {at === null ? "Nothing was read yet." : `This is what the server said ${duration(age)} ago.`}{" "}
      <button type="button" class="button" onClick={refresh}>
        Read again
      </button>
    </div>
  );
}

function NotFound() {
  return (
    <div class="state-note">
      <Icon name="empty" />
      <div>
        <h1 tabIndex={-1}>There is no such page</h1>
        <p>
          <a href={hrefOf("overview")}>Back to the overview</a>
        </p>
      </div>
    </div>
  );
}

export function Logo() {
  return (
    <svg class="logo" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" />
      <path d="M16 7v17M16 12c-5 0-6-2-6-5M16 12c5 0 6-2 6-5M16 24c-3 0-7-1-8-6M16 24c3 0 7-1 8-6M11 16h10" />
    </svg>
  );
}

const KEYS: [keys: string, what: string][] = [
  ["/", "Go to the first filter"],
  ["j k", "Next or previous row"],
  ["Enter", "Open the row"],
  ["n", "Enqueue a job"],
  ["r", "Read again"],
  ["t", "Next colours"],
  ["?", "This list"],
  ["Esc", "Close"],
];

function Help({ pages }: { pages: PageEntry[] }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  const gos = pages.flatMap(({ key, title }): [string, string][] => (key === undefined ? [] : [[`g ${key}`, title]]));
  return (
    <dialog ref={dialog} aria-labelledby="help-title" onClose={() => (isHelpOpen.value = false)}>
      <h2 id="help-title">Keyboard shortcuts</h2>
      <div class="dialog-body keys">
        {[gos, KEYS].map((list, i) => (
          <dl key={i}>
            {list.map(([keys, what]) => (
              <div key={keys}>
                <dt>
                  {keys.split(" ").map((key) => (
                    <kbd key={key}>{key}</kbd>
                  ))}
                </dt>
                <dd>{what}</dd>
              </div>
            ))}
          </dl>
        ))}
      </div>
      <footer class="dialog-foot">
        <button type="button" class="button" onClick={() => dialog.current?.close()}>
          Close
        </button>
      </footer>
    </dialog>
  );
}

function listenToKeys(pages: PageEntry[]): () => void {
  let goUntil = 0;
  const onKey = (event: KeyboardEvent) => {
    const { target, key } = event;
    const isTyping = target instanceof HTMLElement && /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") !== null) return;
    if (performance.now() < goUntil) {
      goUntil = 0;
      const found = pages.find((one) => one.key === key);
      if (found !== undefined) go(hrefOf(found.page));
      return;
    }
    const run = ACTIONS[key];
    if (key === "g") goUntil = performance.now() + GO_MS;
    else if (run !== undefined) {
      event.preventDefault();
      run();
    }
  };
  document.addEventListener("keydown", onKey);
  return () => document.removeEventListener("keydown", onKey);
}

const ACTIONS: Record<string, () => void> = {
  "?": () => (isHelpOpen.value = true),
  "/": () => document.querySelector<HTMLElement>(".filters input, .filters select")?.focus(),
  j: () => moveRow(1),
  k: () => moveRow(-1),
  r: refresh,
  t: () => chooseTheme(THEMES[(THEMES.indexOf(chosenTheme.value) + 1) % THEMES.length] ?? "system"),
  n: () => {
    if (mayOperate.value) go(hrefOf("enqueue"));
  },
};

/** Rows have one link each that opens them. */
function moveRow(by: number): void {
  const links = [...document.querySelectorAll<HTMLElement>("main a.row-link")];
  const at = links.indexOf(document.activeElement as HTMLElement);
  links[at === -1 ? 0 : Math.min(links.length - 1, Math.max(0, at + by))]?.focus();
}
