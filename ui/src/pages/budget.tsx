import { apiPath } from "../api.ts";
import { Chart } from "../chart.tsx";
import { compact, cost, count, duration, type Money, usd } from "../format.ts";
import { useRead } from "../live.ts";
import { Bar, Panel } from "../parts.tsx";

/** What a build has spent, and of how much. */
export function BudgetBar({ spent, budget }: { spent: Money; budget: Money }) {
  const limits = [
    ...(budget.usd === undefined
      ? []
      : [{ share: (spent.usd ?? 0) / budget.usd, text: `${usd(spent.usd ?? 0)} of ${usd(budget.usd)}` }]),
    ...(budget.tokens === undefined
      ? []
      : [{ share: (spent.tokens ?? 0) / budget.tokens, text: `${count(spent.tokens ?? 0)} of ${count(budget.tokens)} tokens` }]),
  ];
  if (limits.length === 0) return <div class="budget muted">{cost(spent)} spent, no budget</div>;
  return (
    <>
      {limits.map(({ share, text }) => (
        <div class="budget" key={text}>
          <Bar share={share} label={`${text} spent`} tone={share >= 1 ? "red" : share >= 0.8 ? "amber" : "teal"} />
          <span>
            {text} <span class="muted">({Math.round(share * 100)} %)</span>
          </span>
        </div>
      ))}
    </>
  );
}

interface SpendPoint {
  at: number;
  spent: Money;
  budget: Money;
}

const SPEND = [
  { label: "spent", tone: "teal" },
  { label: "budget", tone: "red", isLimit: true },
];
const UNITS = [
  { unit: "usd", name: "dollars", format: usd, least: 0.01, axisWidth: 58 },
  { unit: "tokens", name: "tokens", format: (n: number) => `${compact(n)} tokens`, least: 10, axisWidth: 84 },
] as const;
const LIVE_MS = 2_000;

/** What a build has spent over time, against its budget; a chart for each unit that is limited, else for what was spent. */
export function BurnDown({ id }: { id: string }) {
  const { data } = useRead<{ points: SpendPoint[] }>(apiPath(`builds/${encodeURIComponent(id)}/spend`), LIVE_MS);
  if (data === null) return null;
  const [from, points] = [data.points[0]?.at ?? 0, [...new Map(data.points.map((point) => [point.at, point])).values()]];
  const limited = UNITS.filter(({ unit }) => points.some(({ budget }) => budget[unit] !== undefined));
  const shown = limited.length > 0 ? limited : UNITS.filter(({ unit }) => points.some(({ spent }) => (spent[unit] ?? 0) > 0));
  if (shown.length === 0) return null;
  const elapsed = points.map(({ at }) => (at - from) / 1_000);
  return (
    <Panel title="Burn-down" note="spent over time, against the budget">
      <div class={shown.length > 1 ? "columns" : ""}>
        {shown.map(({ unit, name, format, least, axisWidth }) => (
          <div key={unit}>
            <Chart
              series={SPEND}
              data={[elapsed, points.map(({ spent }) => spent[unit] ?? 0), points.map(({ budget }) => budget[unit] ?? null)]}
              format={format}
              label={`Spend over time in ${name}, against the budget`}
              lastText={`after ${duration((elapsed.at(-1) ?? 0) * 1_000)}`}
              elapsedText={(seconds) => duration(seconds * 1_000)}
              least={least}
              axisWidth={axisWidth}
            />
          </div>
        ))}
      </div>
    </Panel>
  );
}
