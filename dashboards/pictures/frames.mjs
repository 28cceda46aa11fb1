// Converts Prometheus's results to Grafana's data frames. Grafana's own code
// applies a panel's transformations, units, thresholds and names.
import {
  FieldType, Registry, applyFieldOverrides, cacheFieldDisplayNames, createDataFrame, standardFieldConfigEditorRegistry,
  standardTransformers, standardTransformersRegistry, transformDataFrame,
} from '@grafana/data';
import { lastValueFrom } from 'rxjs';

// In Grafana, the server registers the field options. This list has those that
// the dashboards use, and passes their values through.
const options = [
  'unit', 'min', 'max', 'decimals', 'thresholds', 'mappings', 'noValue', 'color', 'links', 'custom.drawStyle',
  'custom.lineWidth', 'custom.fillOpacity', 'custom.showPoints', 'custom.stacking', 'custom.thresholdsStyle',
  'custom.align', 'custom.cellOptions', 'custom.wrapText', 'custom.width', 'custom.minWidth',
].map((id) => ({
  id, name: id, path: id.replace('custom.', ''), isCustom: id.startsWith('custom.'),
  process: (value) => value, shouldApply: () => true,
}));
standardFieldConfigEditorRegistry.setInit(() => []);
const registry = new Registry(() => options);
const { mergeTransformer, organizeFieldsTransformer } = standardTransformers;
standardTransformersRegistry.setInit(() => [mergeTransformer, organizeFieldsTransformer]
  .map((t) => ({ id: t.id, name: t.name, transformation: async () => t })));

// framesOf returns the frames of a panel.
export async function framesOf(panel, answers, times, theme) {
  let frames = answers.flatMap(({ target, result }) => {
    if (target.format === 'table') {
      return [table(target, result, answers.length > 1)];
    }
    return result.map((series) => line(target, series, times));
  }).filter((f) => f.length > 0);
  if (panel.transformations) {
    frames = await lastValueFrom(transformDataFrame(panel.transformations, frames));
  }
  for (const s of panel.fieldConfig.defaults.thresholds.steps) { // JSON has no infinity
    s.value ??= -Infinity;
  }
  frames = applyFieldOverrides({
    data: frames, fieldConfig: panel.fieldConfig, fieldConfigRegistry: registry,
    replaceVariables: (text) => text, theme, timeZone: 'utc',
  });
  cacheFieldDisplayNames(frames);
  return frames;
}

// line returns the frame of one series, with nulls for missing values.
function line(target, series, times) {
  const at = new Map((series.values ?? [series.value]).map(([t, v]) => [Math.round(t * 1000), number(v)]));
  const all = series.values ? times : [...at.keys()];
  const { __name__: metric, ...labels } = series.metric;
  const name = target.legendFormat.replace(/{{\s*(\w+)\s*}}/g, (_, label) => labels[label] ?? '');
  return createDataFrame({
    refId: target.refId, name,
    fields: [
      { name: 'Time', type: FieldType.time, values: all, config: {} },
      {
        name: 'Value', type: FieldType.number, values: all.map((t) => at.get(t) ?? null), labels,
        config: { displayNameFromDS: name },
      },
    ],
  });
}

// table returns the frame of an instant query: a column for each label, and the value.
function table(target, result, several) {
  const labels = [...new Set(result.flatMap((series) => Object.keys(series.metric)))].sort();
  return createDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: result.map((s) => s.value[0] * 1000), config: {} },
      ...labels.map((label) => ({
        name: label, type: FieldType.string, values: result.map((s) => s.metric[label] ?? ''), config: {},
      })),
      {
        name: several ? `Value #${target.refId}` : 'Value', type: FieldType.number,
        values: result.map((s) => number(s.value[1])), config: {},
      },
    ],
  });
}

const number = (text) => ({ '+Inf': Infinity, '-Inf': -Infinity })[text] ?? Number(text);
