// The data of a dashboard: the values of its variables and the results of its
// queries, requested from Prometheus as Grafana does.

// rateInterval is several times the interval of the agent's slowest counters.
// Grafana's four scrapes, of a second each here, would draw them as steps.
const rateInterval = '20s';

// A Source queries one Prometheus over one time range, in seconds.
export class Source {
  constructor(url, from, to) {
    Object.assign(this, { url, from, to, step: 1 });
  }

  async get(path, parameters) {
    const answer = await (await fetch(`${this.url}/api/v1/${path}?${new URLSearchParams(parameters)}`)).json();
    if (answer.status !== 'success') {
      throw new Error(`${answer.error}: ${JSON.stringify(parameters)}`);
    }
    return answer.data;
  }

  // variables returns the settings of the dashboard's variables: text is
  // displayed, value goes into queries.
  async variables(dashboard) {
    const set = [];
    for (const v of dashboard.templating.list.filter((v) => v.type === 'query')) {
      const [, series, label] = v.query.query.match(/^label_values\((.*), (\w+)\)$/s);
      const values = await this.get(`label/${label}/values`, {
        'match[]': replace(series, set), start: this.from, end: this.to,
      });
      if (v.includeAll) {
        set.push({ name: v.name, text: 'All', value: v.allValue ?? `(${values.map(escape).join('|')})` });
      } else {
        set.push({ name: v.name, text: values[0], value: escape(values[0]) });
      }
    }
    return set;
  }

  // answer returns the results of a panel's queries, in their order.
  answer(panel, set) {
    const span = Math.round(this.to - this.from);
    return Promise.all((panel.targets ?? []).map(async (t) => {
      const query = replace(t.expr, set)
        .replaceAll('$__rate_interval', rateInterval).replaceAll('$__range', `${span}s`);
      const { result } = t.instant
        ? await this.get('query', { query, time: this.to })
        : await this.get('query_range', { query, start: this.from, end: this.to, step: this.step });
      return { target: t, result };
    }));
  }
}

// replace substitutes the values of the variables.
function replace(text, set) {
  const values = Object.fromEntries(set.map((v) => [v.name, v.value]));
  return text.replace(/\$([a-z]+)\b/g, (all, name) => values[name] ?? all);
}

// escape quotes a value for a regular expression in a query string.
const escape = (value) => value.replace(/[\\^$*+?.()|[\]{}]/g, '\\\\$&');
