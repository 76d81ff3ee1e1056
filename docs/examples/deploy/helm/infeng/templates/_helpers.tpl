{{- define "infeng.name" -}}
{{- printf "%s" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end }}
{{- define "infeng.selector" -}}
app.kubernetes.io/name: infeng
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "infeng.labels" -}}
{{ include "infeng.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
