// Imitates Grafana's state timeline, which Grafana does not publish as a
// component: it draws bars with Grafana's names, texts and colours.
import { formattedValueToString, getFieldDisplayName } from '@grafana/data';
import { measureText, useTheme2 } from '@grafana/ui';

// tick is the distance of the labels on the time axis, in milliseconds.
const tick = 20_000;

// bars joins neighbours of the same value.
function bars(field, times, span) {
  const all = [];
  field.values.forEach((v, i) => {
    const last = all.at(-1);
    const until = times[i + 1] ?? span.to;
    if (last && last.value === v) {
      last.to = until;
    } else {
      all.push({ value: v, from: times[i], to: until });
    }
  });
  return all.filter((b) => b.value !== null);
}

export function States({ panel, frames, width, height, span }) {
  const theme = useTheme2();
  const rows = frames.map((frame) => {
    const [time, value] = frame.fields;
    const name = getFieldDisplayName(value, frame, frames);
    return { name, bars: bars(value, time.values, span), display: value.display };
  });
  const room = height - 48;
  const each = room / rows.length;
  const size = Math.min(12, each * 0.9);
  const names = Math.min(width / 3, 12 + Math.max(...rows.map((r) => measureText(r.name, size).width)));
  const part = (t) => `${(100 * (t - span.from)) / (span.to - span.from)}%`;
  const text = {
    fontSize: size, lineHeight: `${each}px`, whiteSpace: 'nowrap', overflow: 'hidden', textOverflow: 'ellipsis',
  };
  const label = { ...text, flex: `0 0 ${names}px`, boxSizing: 'border-box', textAlign: 'right', paddingRight: 8 };
  const axis = { position: 'relative', height: 24, fontSize: 12, color: theme.colors.text.secondary };
  const swatch = {
    display: 'inline-block', width: 14, height: 4, borderRadius: 2, marginRight: 6, verticalAlign: 'middle',
  };
  const ticks = [];
  for (let t = Math.ceil(span.from / tick) * tick; t < span.to; t += tick) {
    ticks.push(t);
  }
  const mappings = Object.values(panel.fieldConfig.defaults.mappings?.[0]?.options ?? {});
  const legend = new Map(mappings.map((m) => [m.text, m.color]));
  const colorOf = (name) => theme.visualization.getColorByName(name);
  return (
    <div style={{ width, height, color: theme.colors.text.primary }}>
      {rows.map((row, i) => (
        <div key={i} style={{ display: 'flex', height: each }}>
          <div style={label}>{row.name}</div>
          <div style={{ position: 'relative', flex: 1 }}>
            {row.bars.map((b) => {
              const shown = row.display(b.value);
              return (
                <div
                  key={b.from}
                  style={{
                    ...text, position: 'absolute', left: part(b.from), width: part(span.from + b.to - b.from),
                    top: each * 0.075, bottom: each * 0.075, lineHeight: `${each * 0.85}px`, textAlign: 'center',
                    background: colorOf(shown.color), opacity: 0.8, color: theme.colors.getContrastText(shown.color),
                  }}
                >
                  {each >= 11 && formattedValueToString(shown)}
                </div>
              );
            })}
          </div>
        </div>
      ))}
      <div style={{ ...axis, marginLeft: names }}>
        {ticks.map((t) => (
          <span
            key={t}
            style={{ position: 'absolute', left: part(t), transform: 'translateX(-50%)', lineHeight: '24px' }}
          >
            {new Date(t).toISOString().slice(11, 19)}
          </span>
        ))}
      </div>
      <div style={{ height: 24, fontSize: 12, display: 'flex', gap: 16, alignItems: 'center' }}>
        {[...legend].map(([name, color]) => (
          <span key={name}>
            <span style={{ ...swatch, background: colorOf(color) }} />
            {name}
          </span>
        ))}
      </div>
    </div>
  );
}
