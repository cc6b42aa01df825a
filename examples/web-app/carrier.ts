/** Stands for a carrier's API. Its first answer is lost, and it recognizes the keys that it has seen. */
export class Carrier {
  asked = 0;
  readonly #parcels = new Map<string, string>();

  get parcels(): number {
    return this.#parcels.size;
  }

  async send(order: string, idempotencyKey: string): Promise<string> {
    const parcel = this.#parcels.get(idempotencyKey) ?? `parcel-${this.#parcels.size + 1} (${order})`;
    this.#parcels.set(idempotencyKey, parcel);
    // The first answer is lost on its way, although the parcel has left: the worst that an API can do.
    if (++this.asked === 1) throw new Error("The carrier did not answer.");
    return parcel;
  }
}
