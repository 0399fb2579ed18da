"""An app of Django whose second migration makes a table anew that another one names."""
