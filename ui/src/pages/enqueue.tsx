import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, apiPath, jobPath, read, write } from "../api.ts";
import { count, json, parseExact, quoted } from "../format.ts";
import type { Job } from "../model.ts";
import { Command, Field, Hint, Icon, Loading, MAX_SHOWN_CHARS, notify, PageHead, Panel } from "../parts.tsx";
import { address, go, hrefOf } from "../router.ts";

interface Given {
  name: string;
  queue: string;
  input: string;
  key: string;
  id: string;
  priority: string;
  delay: string;
}

/** A new job; with `from` in the address, it starts as a copy of that job. */
export function EnqueuePage() {
  const { from, name = "", queue = "" } = address.value.query;
  const [given, setGiven] = useState<Given | null>(
    from === undefined ? { name, queue, input: "{}", key: "", id: "", priority: "0", delay: "" } : null,
  );
  const [error, setError] = useState<Error | null>(null);
  useEffect(() => {
    if (from === undefined) return;
    const ended = new AbortController();
    read<Job>(apiPath(jobPath(from)), ended.signal).then(
      (job) =>
        setGiven({
          name: job.name,
          queue: job.queue,
          input: json(job.input),
          key: "",
          id: "",
          priority: String(job.priority),
          delay: "",
        }),
      (cause: Error) => ended.signal.aborted || setError(cause),
    );
    return () => ended.abort();
  }, [from]);
  const enqueue = async (of: Given) => {
    try {
      const { id, duplicate } = await write<{ id: string; duplicate: boolean }>("jobs", bodyOf(of));
      notify(duplicate ? "An unfinished job has this key or id; nothing was enqueued." : "The job is enqueued.");
      go(hrefOf("jobs", {}, id));
    } catch (cause) {
      setError(cause as Error);
    }
  };
  return (
    <>
      <a class="back" href={from === undefined ? hrefOf("jobs") : hrefOf("jobs", {}, from)}>
        <Icon name="back" /> {from === undefined ? "Jobs" : "The job"}
      </a>
      <PageHead
        title={from === undefined ? "Enqueue a job" : "Enqueue again"}
        note={from === undefined ? undefined : "A new job with this input; the first one stays as it is."}
      />
      {error === null ? null : (
        <div class="callout tone-red" role="alert">
          <strong>{error.message}</strong> {error instanceof ApiError ? <Hint text={error.hint} /> : null}
        </div>
      )}
      {given === null ? (
        error === null ? (
          <Loading />
        ) : null
      ) : (
        <EnqueueForm given={given} onChange={setGiven} onSubmit={enqueue} />
      )}
    </>
  );
}

function EnqueueForm({
  given,
  onChange,
  onSubmit,
}: {
  given: Given;
  onChange: (given: Given) => void;
  onSubmit: (given: Given) => Promise<void>;
}) {
  const [isBusy, setBusy] = useState(false);
  const [isEdited, setEdited] = useState(given.input.length <= MAX_SHOWN_CHARS);
  const problem = useMemo(() => problemOf(given.input), [given.input]);
  const field = (name: keyof Given) => ({
    name,
    value: given[name],
    autoComplete: "off",
    onInput: (event: { currentTarget: HTMLInputElement }) => onChange({ ...given, [name]: event.currentTarget.value }),
  });
  return (
    <form
      class="enqueue"
      onSubmit={async (event) => {
        event.preventDefault();
        setBusy(true);
        await onSubmit(given);
        setBusy(false);
      }}
    >
      <Panel title="Job">
        <div class="form-grid">
          <Field label="Name">
            <input required {...field("name")} />
          </Field>
          <Field label="Queue" hint="Empty: the job's name">
            <input {...field("queue")} />
          </Field>
          <Field label="Priority" hint="Higher runs first">
            <input type="number" step={1} {...field("priority")} />
          </Field>
          <Field label="Delay" hint="Such as 30s, 10m or 2h; empty: none">
            <input {...field("delay")} />
          </Field>
          <Field label="Key" hint="One unfinished job of this name has it">
            <input {...field("key")} />
          </Field>
          <Field label="Id" hint="One job ever has it; empty: a new one">
            <input {...field("id")} />
          </Field>
        </div>
        {isEdited ? (
          <Field label="Input, as JSON">
            <textarea
              rows={12}
              spellcheck={false}
              aria-invalid={problem !== null}
              aria-describedby="input-problem"
              value={given.input}
              onInput={(event) => onChange({ ...given, input: event.currentTarget.value })}
            />
          </Field>
        ) : (
          <p>
            The input has {count(given.input.length)} characters, too many to edit here. It is enqueued as it is.{" "}
            <button
              type="button"
              class="button"
              onClick={() => {
                setEdited(true);
                onChange({ ...given, input: "{}" });
              }}
            >
              Replace it
            </button>
          </p>
        )}
        <p id="input-problem" class="problem" role="status">
          {problem}
        </p>
      </Panel>
      <Command text={commandOf(given, problem)} />
      <div class="actions">
        <button type="submit" class="button primary" disabled={isBusy || problem !== null}>
          Enqueue
        </button>
      </div>
    </form>
  );
}

function problemOf(input: string): string | null {
  try {
    parseExact(input.trim() === "" ? "null" : input);
    return null;
  } catch (error) {
    return (error as Error).message;
  }
}

function bodyOf({ name, queue, input, key, id, priority, delay }: Given): object {
  return {
    name,
    input: parseExact(input.trim() === "" ? "null" : input),
    ...(queue === "" ? {} : { queue }),
    ...(key === "" ? {} : { key }),
    ...(id === "" ? {} : { id }),
    ...(priority === "" || priority === "0" ? {} : { priority: Number(priority) }),
    ...(delay === "" ? {} : { delay }),
  };
}

/** Longer inputs are read from a file. */
const MAX_COMMAND_CHARS = 4_000;

function commandOf({ name, queue, input, key, id, priority, delay }: Given, problem: string | null): string {
  const isLong = input.length > MAX_COMMAND_CHARS;
  const short = isLong || problem !== null ? input : JSON.stringify(JSON.parse(input.trim() === "" ? "null" : input));
  const flags = Object.entries({ queue, key, id, priority: priority === "0" ? "" : priority, delay }).filter(
    ([, value]) => value !== "",
  );
  return [
    "holdfast enqueue",
    quoted(name === "" ? "NAME" : name),
    isLong ? "-" : quoted(short),
    ...flags.map(([flag, value]) => `--${flag} ${quoted(value)}`),
    ...(isLong ? ["< input.json"] : []),
  ].join(" ");
}
