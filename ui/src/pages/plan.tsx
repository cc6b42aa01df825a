import { useState } from "preact/hooks";
import type { Plan } from "../../../src/pipelines/plan.ts";
import { apiPath } from "../api.ts";
import { cost, plural, quoted } from "../format.ts";
import { useRead } from "../live.ts";
import type { Build } from "../model.ts";
import { Command, Loaded, Panel, Table } from "../parts.tsx";

/** What the next build would do, beside what this one did, where the server knows the pipeline. */
export function PlanBeside({ build: { pipeline, stages } }: { build: Build }) {
  const [isAsked, setAsked] = useState(false);
  const known = useRead<{ items: { name: string }[] }>(apiPath("pipelines")).data?.items ?? [];
  if (known.every(({ name }) => name !== pipeline)) return null;
  const show = (
    <button type="button" class="button" onClick={() => setAsked(true)}>
      Plan the next build
    </button>
  );
  return (
    <Panel title="Plan" note={<Command text={`holdfast plan ${quoted(pipeline)}`} />} actions={isAsked ? undefined : show} flush>
      {isAsked ? <PlanTable pipeline={pipeline} stages={stages} /> : null}
    </Panel>
  );
}

function PlanTable({ pipeline, stages }: Pick<Build, "pipeline" | "stages">) {
  const reading = useRead<Plan>(apiPath(`pipelines/${encodeURIComponent(pipeline)}/plan`), PLAN_MS);
  return (
    <Loaded of={reading}>
      {(plan) => (
        <>
          {plan.warnings.map((warning) => (
            <p class="error-text" key={warning}>
              {warning}
            </p>
          ))}
          <Table label="Plan" head={["Stage", "This build ran", "Would run", "Cached", "Not known yet", "Estimate"]}>
            {Object.entries(plan.stages).map(([name, one]) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                <td class="muted">{plural(stages[name]?.ran ?? 0, "work item")}</td>
                <td>{plural(one.run, "work item")}</td>
                <td>{plural(one.cached, "work item")}</td>
                <td>{plural(one.unknown, "work item")}</td>
                <td>{estimateText(one)}</td>
              </tr>
            ))}
            <tr>
              <th scope="row">All stages</th>
              <td colSpan={4} class="muted">
                {plan.removed === 0 ? null : `${plural(plan.removed, "target is", "targets are")} gone`}
              </td>
              <td class="strong">{estimateText(plan)}</td>
            </tr>
          </Table>
        </>
      )}
    </Loaded>
  );
}

/** A plan reads the whole source. */
const PLAN_MS = 600_000;

function estimateText({ estimate, upperBound, incomplete }: Pick<Plan, "estimate" | "upperBound" | "incomplete">): string {
  if (estimate.usd === undefined && estimate.tokens === undefined) return "unknown";
  return `${upperBound ? "at most " : ""}${cost(estimate)}${incomplete ? " + unknown" : ""}`;
}
