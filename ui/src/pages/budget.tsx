import { cost, count, type Money, usd } from "../format.ts";
import { Bar } from "../parts.tsx";

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
