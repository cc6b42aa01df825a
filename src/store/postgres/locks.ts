/** Whether a row \`lock\` is held at \`clock.now\`: its time is not over, or the exclusive claim that it belongs to still runs. */
export const LOCKED = (s: string): string => `(
  (lock.job is null and lock.expires_at > clock.now)
  or (lock.job is not null and exists (
    select 1 from ${s}.jobs as held where held.key = lock.job and held.fence = lock.fence and held.state = 'running')))`;
