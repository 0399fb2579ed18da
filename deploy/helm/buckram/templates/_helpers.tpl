{{- define "buckram.name" -}}
{{- if contains "buckram" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-buckram" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Labels that select the pods of one part: (dict "root" $ "part" "bookie"). */}}
{{- define "buckram.selector" -}}
app.kubernetes.io/name: buckram
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "buckram.labels" -}}
{{ include "buckram.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "buckram.image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{/* What every pod has beside its containers. */}}
{{- define "buckram.pod" -}}
automountServiceAccountToken: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "buckram.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: ["ALL"]
{{- end }}

{{/* The cluster, and who the process is for others. */}}
{{- define "buckram.environment" -}}
- name: BUCKRAM_METADATA
  {{- if .Values.metadata.existingSecret }}
  valueFrom:
    secretKeyRef:
      name: {{ .Values.metadata.existingSecret }}
      key: uri
  {{- else }}
  value: {{ required "metadata.uri is needed: where the cluster's metadata is, such as etcd://etcd:2379/buckram" .Values.metadata.uri | quote }}
  {{- end }}
- name: BUCKRAM_LOG_FORMAT
  value: json
{{- if .Values.security.tlsSecret }}
- name: BUCKRAM_TLS_MODE
  value: {{ .Values.security.tlsMode | quote }}
- name: BUCKRAM_TLS_CA
  value: /tls/ca.crt
- name: BUCKRAM_TLS_CERTIFICATE
  value: /tls/tls.crt
- name: BUCKRAM_TLS_KEY
  value: /tls/tls.key
{{- end }}
{{- if .Values.security.tokenSecret }}
- name: BUCKRAM_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .Values.security.tokenSecret }}
      key: token
{{- end }}
{{- end }}

{{- define "buckram.mounts" -}}
- name: scratch
  mountPath: /tmp
{{- if .Values.security.tlsSecret }}
- name: tls
  mountPath: /tls
  readOnly: true
{{- end }}
{{- end }}

{{- define "buckram.volumes" -}}
- name: scratch
  emptyDir: {}
{{- if .Values.security.tlsSecret }}
- name: tls
  emptyDir:
    medium: Memory
- name: tls-secret
  secret:
    secretName: {{ .Values.security.tlsSecret }}
{{- end }}
{{- end }}

{{/* A volume of a secret can be read by its group, and Buckram refuses a private key that others can read: a copy. */}}
{{- define "buckram.tlsCopy" -}}
{{- if .Values.security.tlsSecret }}
initContainers:
  - name: tls
    {{- include "buckram.image" . | nindent 4 }}
    command: ["/bin/sh", "-euc", "umask 0077; cp -L /tls-secret/ca.crt /tls-secret/tls.crt /tls-secret/tls.key /tls/"]
    {{- include "buckram.container" . | nindent 4 }}
    volumeMounts:
      - name: tls
        mountPath: /tls
      - name: tls-secret
        mountPath: /tls-secret
        readOnly: true
{{- end }}
{{- end }}
