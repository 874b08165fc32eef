// The last minutes of a queue, kept in the page: what the plots show. Pure but for its own list.

export const SPAN_S = 300;
const SMOOTH_MS = 4_000;

/** Samples of one queue, oldest first. */
export class History {
  constructor() {
    this.samples = [];
  }

  /** Add one; samples out of order, of another life of the queue, or twice the same are left out. */
  add(sample) {
    const last = this.samples.at(-1);
    if (last && sample.at_ms <= last.at_ms) return;
    if (last && (sample.accepted < last.accepted || sample.finished < last.finished)) this.samples = [];
    this.samples.push(sample);
    const from = sample.at_ms - SPAN_S * 1000;
    while (this.samples.length > 2 && this.samples[0].at_ms < from) this.samples.shift();
  }

  /** How fast `of(sample)` grew, a second, at each sample: over the last seconds, as single ones are restless. */
  rates(of) {
    let from = 0;
    return this.samples.slice(1).map((sample, place) => {
      while (from < place && this.samples[from + 1].at_ms <= sample.at_ms - SMOOTH_MS) from += 1;
      const before = this.samples[from];
      const seconds = (sample.at_ms - before.at_ms) / 1000;
      return { at_ms: sample.at_ms, value: Math.max(0, (of(sample) - of(before)) / seconds) };
    });
  }

  /** A value of each sample; null where there is none. */
  values(of) {
    return this.samples.map((sample) => ({ at_ms: sample.at_ms, value: of(sample) }));
  }

  /** Rate over the last `seconds`: steadier than that between two samples. */
  recent(of, seconds = 10) {
    const last = this.samples.at(-1);
    const first = last && this.samples.find((sample) => sample.at_ms >= last.at_ms - seconds * 1000);
    if (!first || first === last) return null;
    return ((of(last) - of(first)) * 1000) / (last.at_ms - first.at_ms);
  }
}

/** At most `most` points: neighbours become their mean, so that a plot stays legible and cheap. */
export function thin(points, most) {
  const size = Math.ceil(points.length / most);
  if (size <= 1) return points;
  const groups = [];
  for (let from = 0; from < points.length; from += size) {
    const group = points.slice(from, from + size).filter((point) => point.value !== null);
    if (!group.length) continue;
    const mean = group.reduce((sum, point) => sum + point.value, 0) / group.length;
    groups.push({ at_ms: group.at(-1).at_ms, value: mean });
  }
  return groups;
}

/** A round number at or above `value`: where an axis ends. */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}
