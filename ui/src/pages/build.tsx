import { useState } from "preact/hooks";
import { currentReasonText, hasEnded } from "../../../src/core/pipelines/build.ts";
import { type Action, ask, mayApprove, mayOperate } from "../action.tsx";
import { apiPath, write } from "../api.ts";
import { bytes, cost, count, duration, lastWords, type Money, plural, quoted } from "../format.ts";
import { now, useRead } from "../live.ts";
import type { Build } from "../model.ts";
import {
  Badge,
  Command,
  CopyButton,
  Empty,
  Facts,
  Failed,
  Field,
  Icon,
  Json,
  Loaded,
  PageHead,
  Panel,
  Table,
  Time,
} from "../parts.tsx";
import { address, hrefOf, setQuery } from "../router.ts";
import { Grid } from "./grid.tsx";
import { BudgetBar, BurnDown } from "./budget.tsx";
import { PlanBeside } from "./plan.tsx";

export function BuildPage() {
  const id = address.value.id ?? "";
  const reading = useRead<Build>(apiPath(`builds/${encodeURIComponent(id)}`));
  return (
    <>
      <a class="back" href={hrefOf("builds")}>
        <Icon name="back" /> Builds
      </a>
      <Loaded of={reading} lines={10}>
        {(build) => <Shown build={build} />}
      </Loaded>
    </>
  );
}

function Shown({ build }: { build: Build }) {
  const { id, pipeline, state, budget, spent, createdAt, finishedAt, errors } = build;
  return (
    <>
      <PageHead
        title={
          <>
            {pipeline} <Badge state={state} />
          </>
        }
        note={
          <span class="id">
            <span class="mono">{id}</span>
            <CopyButton text={id} what="the id" />
          </span>
        }
        actions={
          mayOperate.value ? (
            <>
              <a
                class="button"
                href={apiPath(`builds/${encodeURIComponent(id)}/export`)}
                title={`holdfast builds export ${quoted(id)} FOLDER`}
                download
              >
                Export
              </a>
              {hasEnded(state) ? null : (
                <button type="button" class="button danger" onClick={() => ask(abandon(build))}>
                  Abandon
                </button>
              )}
            </>
          ) : undefined
        }
      />
      {state === "BUDGET_PAUSE" ? <PauseBanner build={build} /> : null}
      <div class="columns">
        <Panel title="Spend">
          <BudgetBar spent={spent} budget={budget} />
          <Facts
            of={[
              ["Spent", cost(spent)],
              ["Budget", budget.usd === undefined && budget.tokens === undefined ? "none" : cost(budget)],
            ]}
          />
        </Panel>
        <Panel title="Details">
          <Facts
            of={[
              ["Reason", currentReasonText(build)],
              ["Started", <Time at={createdAt} />],
              ["Finished", <Time at={finishedAt} none="not yet" />],
              [finishedAt === undefined ? "Open for" : "Took", duration(Math.max(0, (finishedAt ?? now.value) - createdAt))],
            ]}
          />
        </Panel>
      </div>
      <BurnDown id={id} />
      <Stages build={build} />
      <PlanBeside build={build} />
      {errors.length === 0 ? null : (
        <Panel title="Errors" note={errors.length < 20 ? plural(errors.length, "error") : "the first 20 errors"} flush>
          <Table label="Errors" head={["Stage", "Target", "Message"]}>
            {errors.map(({ stage, target, message }) => (
              <tr key={`${stage} ${target}`}>
                <td>{stage}</td>
                <td>
                  <a href={hrefOf("builds", { stage, target }, id)}>{target}</a>
                </td>
                <td class="wrap error-text">{message}</td>
              </tr>
            ))}
          </Table>
        </Panel>
      )}
      <Target build={build} key={address.value.query["target"]} />
      <Grid id={id} />
      <Command text={`holdfast builds show ${quoted(id)}`} />
    </>
  );
}

const PARTS = [
  ["ran", "green"],
  ["cached", "blue"],
  ["failed", "red"],
  ["left", "grey"],
] as const;

/** A row for each stage, with a bar of what became of its work items. */
function Stages({ build: { id, stages } }: { build: Build }) {
  const names = Object.keys(stages);
  if (names.length === 0) return <Empty title="The build has no stages yet" />;
  return (
    <Panel title="Stages" note={plural(names.length, "stage")} flush>
      <Table label="Stages" head={["Stage", "Work items", ...PARTS.map(([part]) => part)]}>
        {Object.entries(stages).map(([name, counts]) => {
          const all = PARTS.reduce((sum, [part]) => sum + counts[part], 0);
          return (
            <tr key={name}>
              <th scope="row">
                <a href={hrefOf("builds", { stage: name }, id)}>{name}</a>
              </th>
              <td class="stack-cell">
                <div class="stack" role="img" aria-label={PARTS.map(([part]) => `${count(counts[part])} ${part}`).join(", ")}>
                  {PARTS.map(([part, tone]) =>
                    counts[part] === 0 ? null : (
                      <div class={`tone-${tone}`} key={part} style={{ flexGrow: counts[part] / all }} />
                    ),
                  )}
                </div>
              </td>
              {PARTS.map(([part, tone]) => (
                <td key={part} class={counts[part] === 0 ? "muted" : ""}>
                  <span class={`badge tone-${tone}`}>
                    <span class="dot" aria-hidden="true" />
                    {plural(counts[part], "work item")}
                  </span>
                </td>
              ))}
            </tr>
          );
        })}
      </Table>
    </Panel>
  );
}

interface Why {
  ran: boolean;
  reason: string;
  parts: { part: string; before?: unknown; after?: unknown }[];
}

interface Artifact {
  stage: string;
  path: string;
  name: string;
  hash: string;
  size: number;
}

/** Why a stage ran for a target, what it returned, and its files; stage and target are in the address. */
function Target({ build: { id, stages } }: { build: Build }) {
  const { stage = "", target = "", path = target } = address.value.query;
  const [typed, setTyped] = useState(target);
  const isAsked = stage !== "" && target !== "";
  const base = `builds/${encodeURIComponent(id)}`;
  const why = useRead<Why>(isAsked ? apiPath(`${base}/why`, { stage, target }) : null, ONCE_MS);
  const output = useRead<{ output: unknown }>(isAsked ? apiPath(`${base}/output`, { stage, target }) : null, ONCE_MS);
  const artifacts = useRead<{ items: Artifact[] }>(isAsked ? apiPath(`${base}/artifacts`, { stage, path }) : null, ONCE_MS);
  return (
    <Panel title="One target" note="why a stage ran for it, and its output">
      <form
        class="filters"
        onSubmit={(event) => {
          event.preventDefault();
          setQuery({ target: typed.trim(), path: "", stage: stage === "" ? Object.keys(stages)[0] : stage });
        }}
      >
        <Field label="Stage">
          <select value={stage} onChange={(event) => setQuery({ stage: event.currentTarget.value })}>
            <option value="">Choose a stage</option>
            {Object.keys(stages).map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </Field>
        <Field label="Target">
          <input value={typed} placeholder="its id, such as a path" onInput={(event) => setTyped(event.currentTarget.value)} />
        </Field>
        <button type="submit" class="button">
          Show
        </button>
      </form>
      {!isAsked ? null : (
        <>
          <Command text={`holdfast builds why ${lastWords(id, stage, target)}`} />
          {why.error === null ? null : <Failed error={why.error} />}
          {why.data === null ? null : <WhyShown why={why.data} />}
          {output.data === null ? null : <Json value={output.data.output} label="the output" />}
          {why.error === null && output.error !== null ? <p class="muted">{output.error.message}</p> : null}
          {(artifacts.data?.items ?? []).map(({ name, hash, size }) => (
            <p key={`${name} ${hash}`}>
              <a href={apiPath(`artifacts/${hash}`)} download={name}>
                {name}
              </a>{" "}
              <span class="muted">{bytes(size)}</span>
            </p>
          ))}
        </>
      )}
    </Panel>
  );
}

/** What a build has recorded does not change with every commit. */
const ONCE_MS = 10_000;

function WhyShown({ why: { reason, parts } }: { why: Why }) {
  return (
    <>
      <p>{reason}</p>
      {parts.length === 0 ? null : (
        <Table label="What changed" head={["Part", "Before", "Now"]}>
          {parts.map(({ part, before, after }) => (
            <tr key={part}>
              <th scope="row">{part}</th>
              <td class="wrap mono">{JSON.stringify(before) ?? "–"}</td>
              <td class="wrap mono">{JSON.stringify(after) ?? "–"}</td>
            </tr>
          ))}
        </Table>
      )}
    </>
  );
}

function PauseBanner({ build }: { build: Build }) {
  const { budget, spent } = build;
  if (build.approved)
    return (
      <section class="banner tone-amber" aria-label="Approved">
        <div>
          <strong>A new budget is approved.</strong>
          <p>{spentOf(spent, budget)} is spent. The next run of the pipeline continues the build.</p>
        </div>
        {mayApprove.value ? (
          <button type="button" class="button danger" onClick={() => ask(refuse(build))}>
            Refuse
          </button>
        ) : null}
      </section>
    );
  return (
    <section class="banner tone-amber" aria-label="Paused at its budget">
      <div>
        <strong>Paused at its budget.</strong>
        <p>
          {spentOf(spent, budget)} is spent, and the next work item would go beyond it. Approve a new budget, and its next run
          continues where it stopped; refuse, and the build ends as failed. The next build reuses what was paid for.
        </p>
      </div>
      {mayApprove.value ? (
        <div class="actions">
          <button type="button" class="button primary" onClick={() => ask(approve(build))}>
            Approve more
          </button>
          <button type="button" class="button danger" onClick={() => ask(refuse(build))}>
            Refuse
          </button>
        </div>
      ) : (
        <p class="muted">It needs a user who may approve.</p>
      )}
    </section>
  );
}

/** Only what the budget limits. */
function spentOf(spent: Money, budget: Money): string {
  const limited = {
    ...(budget.usd === undefined ? {} : { usd: spent.usd ?? 0 }),
    ...(budget.tokens === undefined ? {} : { tokens: spent.tokens ?? 0 }),
  };
  return `${cost(limited)} of ${cost(budget)}`;
}

const REASON = { name: "reason", label: "Reason", hint: "Stored with the build and in the audit" };

function budgetText({ usd = "", tokens = "" }: Record<string, string>): string {
  return [...(usd === "" ? [] : [`usd=${usd}`]), ...(tokens === "" ? [] : [`tokens=${tokens}`])].join(",");
}

function doubled(n: number | undefined): string {
  return n === undefined ? "" : String(n * 2);
}

function approve({ id, pipeline, budget }: Build): Action {
  const path = `builds/${encodeURIComponent(id)}`;
  return {
    title: `Approve more for ${pipeline}?`,
    body: <p>How much the build may spend in all, with what it has spent so far. A new token is made, and used at once.</p>,
    verb: "Approve",
    fields: [
      { name: "usd", label: "Dollars in all", type: "number", value: doubled(budget.usd), required: budget.usd !== undefined },
      {
        name: "tokens",
        label: "Tokens in all",
        type: "number",
        value: doubled(budget.tokens),
        required: budget.tokens !== undefined,
      },
    ],
    command: (given) =>
      `holdfast builds token ${quoted(id)} | holdfast builds approve ${quoted(id)} --token - --budget ${budgetText(given)}`,
    run: async ({ usd = "", tokens = "" }) => {
      const wanted: Money = { ...(usd === "" ? {} : { usd: Number(usd) }), ...(tokens === "" ? {} : { tokens: Number(tokens) }) };
      const { token } = await write<{ token: string }>(`${path}/token`);
      await write(`${path}/approve`, { token, budget: wanted });
      return `Approved: ${cost(wanted)} in all. Its next run continues it.`;
    },
  };
}

function refuse({ id, pipeline }: Build): Action {
  return {
    title: `Refuse ${pipeline} more?`,
    body: <p>The build ends as failed, and its token is no longer valid. The next build reuses its results.</p>,
    verb: "Refuse",
    isDangerous: true,
    fields: [REASON],
    command: ({ reason = "" }) => `holdfast builds refuse ${quoted(id)} --reason ${quoted(reason)}`,
    run: async ({ reason }) => {
      await write(`builds/${encodeURIComponent(id)}/refuse`, { reason });
      return "Refused. The build has failed.";
    },
  };
}

function abandon({ id, pipeline }: Build): Action {
  return {
    title: `Abandon ${pipeline}?`,
    body: <p>The build ends, and its orchestrator stops, if it has one. The next build reuses its results.</p>,
    verb: "Abandon the build",
    isDangerous: true,
    fields: [REASON],
    command: ({ reason = "" }) => `holdfast builds abandon ${quoted(id)} --reason ${quoted(reason)}`,
    run: async ({ reason }) => {
      await write(`builds/${encodeURIComponent(id)}/abandon`, { reason });
      return "The build is abandoned.";
    },
  };
}
