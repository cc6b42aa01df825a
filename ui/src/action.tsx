import { computed, signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { ApiError } from "./api.ts";
import { refresh } from "./live.ts";
import type { Overview } from "./model.ts";
import { Command, Field, Hint, notify } from "./parts.tsx";

type Role = Overview["access"]["role"];
const ROLES: readonly Role[] = ["read", "operate", "approve"];
/** What the user of this page may do; until it is known, what everyone may. */
export const role = signal<Role>("read");
export const mayOperate = computed(() => ROLES.indexOf(role.value) >= ROLES.indexOf("operate"));
export const mayApprove = computed(() => role.value === "approve");

interface AskedField {
  name: string;
  label: string;
  hint?: string;
  type?: "text" | "number";
  value?: string;
  required?: boolean;
}

/** A change that is confirmed before it is made. */
export interface Action {
  title: string;
  body: ComponentChildren;
  /** The button's text: a verb. */
  verb: string;
  isDangerous?: boolean;
  fields?: AskedField[];
  /** The shell command that does the same. */
  command: (given: Record<string, string>) => string;
  /** Makes the change, and returns what to say then. */
  run: (given: Record<string, string>) => Promise<string>;
}

const asked = signal<Action | null>(null);

export function ask(action: Action): void {
  asked.value = action;
}

export function ActionDialog() {
  const action = asked.value;
  return action === null ? null : <Confirmation action={action} key={action.title} />;
}

function Confirmation({ action }: { action: Action }) {
  const { title, body, verb, isDangerous = false, fields = [], command, run } = action;
  const dialog = useRef<HTMLDialogElement>(null);
  const [given, setGiven] = useState(() => Object.fromEntries(fields.map(({ name, value = "" }) => [name, value])));
  const [error, setError] = useState<ApiError | null>(null);
  const [isBusy, setBusy] = useState(false);
  useEffect(() => dialog.current?.showModal(), []);
  const confirm = async () => {
    setBusy(true);
    try {
      notify(await run(given));
      dialog.current?.close();
      refresh();
    } catch (cause) {
      setError(cause as ApiError);
    }
    setBusy(false);
  };
  return (
    <dialog ref={dialog} aria-labelledby="ask-title" onClose={() => (asked.value = null)}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void confirm();
        }}
      >
        <h2 id="ask-title">{title}</h2>
        <div class="dialog-body">
          {body}
          {fields.map(({ name, label, hint, type = "text", required = true }) => (
            <Field label={label} key={name} {...(hint === undefined ? {} : { hint })}>
              <input
                name={name}
                type="text"
                inputMode={type === "number" ? "decimal" : "text"}
                pattern={type === "number" ? "[0-9]+([.][0-9]+)?" : undefined}
                required={required}
                autoComplete="off"
                value={given[name] ?? ""}
                onInput={(event) => setGiven({ ...given, [name]: event.currentTarget.value })}
              />
            </Field>
          ))}
          <div>
            <small class="muted">The same on the command line</small>
            <Command text={command(given)} />
          </div>
          {error === null ? null : (
            <div class="callout tone-red" role="alert">
              <strong>{error.message}</strong> {error.hint === undefined ? null : <Hint text={error.hint} />}
            </div>
          )}
        </div>
        <footer class="dialog-foot">
          <button type="button" class="button" onClick={() => dialog.current?.close()}>
            Keep as it is
          </button>
          <button type="submit" class={isDangerous ? "button danger" : "button primary"} disabled={isBusy}>
            {verb}
          </button>
        </footer>
      </form>
    </dialog>
  );
}
