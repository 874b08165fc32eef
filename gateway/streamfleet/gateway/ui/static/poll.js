// Asks again and again: soon after an answer, later and later after failures, not at all in a hidden tab.

const EVERY_MS = 1_000;
const SLOWEST_MS = 15_000;

/** When to ask next, after so many failures in a row. */
export const pauseMs = (failures) => Math.min(SLOWEST_MS, EVERY_MS * 2 ** Math.min(failures, 6));

export class Poll {
  /** `ask` resolves, or throws; `failed(error, again_ms)` hears of the second. */
  constructor(ask, failed) {
    this.ask = ask;
    this.failed = failed;
    this.failures = 0;
    this.timer = 0;
    this.running = false;
    this.turn = 0;
    document.addEventListener("visibilitychange", () => document.hidden || (this.running && this.now()));
  }

  start() {
    this.running = true;
    this.now();
  }

  stop() {
    this.running = false;
    this.turn += 1;
    clearTimeout(this.timer);
  }

  /** At once; an answer to an earlier question no longer sets the clock. */
  async now() {
    clearTimeout(this.timer);
    const turn = ++this.turn;
    let again_ms = EVERY_MS;
    try {
      await this.ask();
      this.failures = 0;
    } catch (error) {
      if (turn !== this.turn) return;
      this.failures += 1;
      again_ms = Math.max(pauseMs(this.failures), error.retry_ms ?? 0);
      this.failed(error, again_ms);
    }
    if (turn === this.turn && this.running && !document.hidden) this.timer = setTimeout(() => this.now(), again_ms);
  }
}
