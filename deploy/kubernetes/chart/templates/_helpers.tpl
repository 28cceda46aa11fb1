{{- define "gpusteward.selector" -}}
app.kubernetes.io/name: gpusteward
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gpusteward.labels" -}}
{{ include "gpusteward.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "gpusteward.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{/* Denies everything. Callers add what a container needs. */}}
{{- define "gpusteward.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "gpusteward.enforces" -}}
{{- if dig "enforcer" "enabled" false .Values.config }}true{{ end }}
{{- end }}
