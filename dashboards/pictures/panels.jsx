// One component for each kind of panel, built from those that Grafana publishes.
import {
  dateTime, formattedValueToString, getFieldDisplayName, getFieldDisplayValues, reduceField,
} from '@grafana/data';
import { BigValue, TimeSeries, VizRepeater, useTheme2 } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { States } from './states.jsx';

// kinds maps each kind of panel to a component. Grafana publishes none for a
// kind with ours; the component imitates it.
export const kinds = {
  stat: { draw: Stat }, timeseries: { draw: Lines, emptyable: true }, table: { draw: Table, emptyable: true },
  'state-timeline': { draw: States, emptyable: true, ours: true },
};

// rangeOf converts a span to Grafana's time range.
const rangeOf = ({ from, to }) => ({ from: dateTime(from), to: dateTime(to), raw: { from: 'now-1h', to: 'now' } });

function Stat({ panel, frames, width, height, span }) {
  const theme = useTheme2();
  const o = panel.options;
  const values = () => getFieldDisplayValues({
    data: frames, fieldConfig: panel.fieldConfig, reduceOptions: o.reduceOptions, replaceVariables: (text) => text,
    sparkline: o.graphMode !== 'none', theme, timeZone: 'utc',
  });
  return (
    <VizRepeater
      getValues={values} source={frames} width={width} height={height} autoGrid orientation={o.orientation || 'auto'}
      renderValue={({ value, width, height, count }) => (
        <BigValue
          value={value.display} sparkline={value.sparkline && { ...value.sparkline, timeRange: rangeOf(span) }}
          count={count} width={width} height={height} theme={theme} colorMode={o.colorMode} graphMode={o.graphMode}
          justifyMode={o.justifyMode} textMode={o.textMode} wideLayout={o.wideLayout}
        />
      )}
    />
  );
}

function Lines({ panel, frames, width, height, span }) {
  return (
    <TimeSeries
      frames={frames} timeRange={rangeOf(span)} timeZone="utc" width={width} height={height}
      legend={panel.options.legend}
    />
  );
}

function Table({ panel, frames, width, height }) {
  const o = panel.options;
  return (
    <TableNG
      data={frames[0]} width={width} height={height} sortBy={o.sortBy} cellHeight={o.cellHeight}
      noHeader={!o.showHeader} resizable enableVirtualization={false} fieldConfig={panel.fieldConfig}
    />
  );
}

// Plain is a table of names and last values, for kinds of panels without a
// component.
export function Plain({ frames }) {
  const last = (field) => reduceField({ field, reducers: ['lastNotNull'] }).lastNotNull;
  const rows = frames.flatMap((frame) => frame.fields.filter((f) => f.type === 'number').map((f) => [
    getFieldDisplayName(f, frame, frames), formattedValueToString(f.display(last(f))),
  ]));
  return (
    <table>
      <tbody>{rows.map(([name, value]) => <tr key={name}><td>{name}</td><td>{value}</td></tr>)}</tbody>
    </table>
  );
}
