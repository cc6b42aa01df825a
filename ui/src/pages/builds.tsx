import { BUILD_STATES } from "../../../src/core/pipelines/build.ts";
import { apiPath } from "../api.ts";
import { count, cost, duration, quoted } from "../format.ts";
import { now, useRead } from "../live.ts";
import type { Build, Page } from "../model.ts";
import { Badge, Bar, Command, Empty, FilterText, Icon, Loaded, PageHead, Panel, Select, Table, Time } from "../parts.tsx";
import { address, hrefOf, setQuery } from "../router.ts";

const PAGE = "50";

export function BuildsPage() {
  const { pipeline = "", state = "", after } = address.value.query;
  const reading = useRead<Page<Build>>(apiPath("builds", { pipeline, state, after, limit: PAGE, order: "newest" }));
  const flags = [...(pipeline === "" ? [] : ["--pipeline", pipeline]), ...(state === "" ? [] : ["--state", state])];
  const isFiltered = flags.length > 0;
  return (
    <>
      <PageHead title="Builds" note={<Command text={["holdfast builds list", ...flags.map(quoted)].join(" ")} />} />
      <search class="filters">
        <Select
          label="State"
          value={state}
          options={[["", "All states"], ...BUILD_STATES.map((one) => [one, one] as const)]}
          onChange={(one) => setQuery({ state: one, after: "" })}
        />
        <FilterText label="Pipeline" value={pipeline} onChange={(one) => setQuery({ pipeline: one, after: "" })} />
        {isFiltered ? (
          <a class="button quiet" href={hrefOf("builds")}>
            <Icon name="close" /> Clear
          </a>
        ) : null}
      </search>
      <Loaded of={reading} lines={6}>
        {({ items, next }) =>
          items.length === 0 ? (
            <Empty title={isFiltered ? "No build matches these filters" : "No builds yet"}>
              {isFiltered ? <a href={hrefOf("builds")}>Show all builds</a> : <Command text="holdfast run" />}
            </Empty>
          ) : (
            <Panel
              title="The newest first"
              flush
              actions={
                after === undefined && next === undefined ? undefined : (
                  <>
                    {after === undefined ? null : (
                      <a class="button" href={hrefOf("builds", { pipeline, state })}>
                        Newest
                      </a>
                    )}
                    {next === undefined ? null : (
                      <a class="button" href={hrefOf("builds", { pipeline, state, after: next })}>
                        Older
                      </a>
                    )}
                  </>
                )
              }
            >
              <Table label="Builds" head={["Pipeline", "State", "Work items", "Spent", "Started", "Took"]}>
                {items.map((build) => (
                  <Row build={build} key={build.id} />
                ))}
              </Table>
            </Panel>
          )
        }
      </Loaded>
    </>
  );
}

function Row({ build: { id, pipeline, state, reason, spent, budget, createdAt, finishedAt, stages } }: { build: Build }) {
  const sum = (of: "ran" | "cached" | "failed" | "left") => Object.values(stages).reduce((total, stage) => total + stage[of], 0);
  const [done, failed, left] = [sum("ran") + sum("cached"), sum("failed"), sum("left")];
  const all = Math.max(1, done + failed + left);
  return (
    <tr>
      <th scope="row" title={pipeline}>
        <a class="row-link" href={hrefOf("builds", {}, id)}>
          {pipeline}
        </a>
        <div class="muted mono">{id}</div>
      </th>
      <td>
        <Badge state={state} />
        <div class="muted">{reason}</div>
      </td>
      <td>
        <div class="depth">
          <Bar share={done / all} label={`${count(done)} of ${count(all)} done`} tone={failed > 0 ? "amber" : "teal"} />
          <span>
            {count(done)} of {count(done + failed + left)} work items{failed === 0 ? "" : `, ${count(failed)} failed`}
          </span>
        </div>
      </td>
      <td>
        {cost(spent)}
        {budget.usd === undefined && budget.tokens === undefined ? null : <div class="muted">of {cost(budget)}</div>}
      </td>
      <td>
        <Time at={createdAt} />
      </td>
      <td>{duration(Math.max(0, (finishedAt ?? now.value) - createdAt))}</td>
    </tr>
  );
}
